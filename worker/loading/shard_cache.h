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

// One rank's packed shard in a folder. Several workers, models and layouts may
// share the folder. The file name states the checkpoint's fingerprint, the
// layout and the forms of the weights: FINGERPRINT-1x1x2-rank0-int8.packed. The
// file is written under a temporary name, flushed and renamed, so a reader
// never finds a part of a file. The last of several writers wins. The next
// writer removes what a killed writer left.
//
// Nothing removes old files. Users may delete a file at any time, also while a
// worker has it mapped. Each use sets the file's time of modification, so users
// can tell which files are unused.
class ShardCache {
 public:
  // Returns the cache of one shard of `checkpoint`. The folder need not exist.
  static ShardCache Of(const std::string& folder,
                       const cluster::Checkpoint& checkpoint,
                       const std::string& fingerprint,
                       const cluster::ShardPlan& plan,
                       const LoadOptions& options);

  // Makes the folder and its missing parent folders. Errors: those of
  // cluster::FileError.
  static absl::Status MakeFolder(const std::string& folder);

  // Opens the shard and verifies every byte.
  // Errors: those of PackedShard::Open and PackedShard::Verify. NOT_FOUND:
  // there is no file.
  absl::StatusOr<std::shared_ptr<const PackedShard>> Open(
      kernels::ThreadPool& pool, PackedShardProgress progress) const;

  // Checks that the folder has room for a shard of `bytes` bytes, before the
  // caller reads the checkpoint. Does not count the table and the padding,
  // about a thousandth of the file. Requires that the folder exists. Errors:
  // those of cluster::FileError.
  absl::Status CheckRoom(uint64_t bytes) const;

  // Writes the shard to the folder. An earlier file stays after an error. Error
  // messages begin with the path.
  // Errors: those of cluster::FileError, and a status from `progress`.
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
