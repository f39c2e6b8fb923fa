// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_LOADING_SHARD_CACHE_H_
#define RINGFLEET_WORKER_LOADING_SHARD_CACHE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/checkpoint/safetensors.h"
#include "cluster/model/shard_plan.h"
#include "kernels/thread_pool.h"
#include "worker/loading/packed_shard.h"
#include "worker/loading/shard_loader.h"

namespace ringfleet::worker {

// One rank's packed shard in a folder that several workers, models and layouts
// may share. The file is named after the checkpoint's fingerprint, the layout
// and the forms of the weights: FINGERPRINT-1x1x2-rank0-int8.packed. It is
// written under another name, flushed and renamed, so that a reader finds a
// whole file. The last of several writers wins. The next writer removes the
// leftovers of a killed writer.
//
// Nothing removes old files. Users may delete a file that no fleet uses at any
// time, also while a worker has it mapped. Each use sets the file's time of
// modification.
class ShardCache {
 public:
  // For one shard of a checkpoint with this fingerprint; the folder need not
  // exist.
  static ShardCache Of(const std::string& folder,
                       const cluster::Checkpoint& checkpoint,
                       const std::string& fingerprint,
                       const cluster::ShardPlan& plan,
                       const LoadOptions& options);

  // Makes a folder, and those above it. Errors: those of cluster::FileError.
  static absl::Status MakeFolder(const std::string& folder);

  // The shard, every byte of it checked. Errors: those of PackedShard,
  // NOT_FOUND when there is none, and what `progress` returned.
  absl::StatusOr<std::shared_ptr<const PackedShard>> Open(
      kernels::ThreadPool& pool, PackedShardProgress progress) const;

  // Checks that the folder, which exists, has room for a shard of `bytes`, so
  // that no checkpoint is read in vain. Table and padding, about a thousandth,
  // are not counted. Errors: those of cluster::FileError.
  absl::Status CheckRoom(uint64_t bytes) const;

  // Puts a shard there. On an error nothing has changed; messages begin with
  // the path. Errors: those of cluster::FileError, and what `progress`
  // returned.
  absl::Status Write(const std::vector<PackedPart>& parts,
                     kernels::ThreadPool& pool,
                     PackedShardProgress progress) const;

  const std::string& path() const { return path_; }

 private:
  ShardCache(std::string folder, std::string path, std::string key)
      : folder_(std::move(folder)),
        path_(std::move(path)),
        key_(std::move(key)) {}

  void RemoveLeftovers() const;

  std::string folder_;
  std::string path_;
  std::string key_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_SHARD_CACHE_H_
