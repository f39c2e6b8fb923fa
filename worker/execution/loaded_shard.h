// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_EXECUTION_LOADED_SHARD_H_
#define RINGFLEET_WORKER_EXECUTION_LOADED_SHARD_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/model/expert_layout.h"
#include "cluster/model/model_spec.h"
#include "cluster/model/shard_plan.h"
#include "cluster/rpc/cancellable_calls.h"
#include "kernels/dtype.h"
#include "kernels/thread_pool.h"
#include "protos/worker.pb.h"
#include "worker/loading/packed_shard.h"
#include "worker/loading/shard_cache.h"
#include "worker/loading/shard_loader.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// What a rank holds between epochs: its slices of one checkpoint. Immutable,
// but that experts may move between two steps.
struct LoadedShard {
  v1::LoadRequest request;
  LoadOptions options;  // Without `experts`: `layout` says that.
  cluster::ModelSpec spec;
  cluster::ShardPlan plan;
  cluster::ExpertLayout layout;  // Of all places.
  kernels::Dtype cache_dtype = kernels::Dtype::kBf16;
  std::string fingerprint;
  std::string file_state;  // Of the checkpoint: Checkpoint::FileState.
  Weights weights;
  std::optional<Weights> reference;  // Plain float32, on request.
  int slots = 0;
  int context = 0;                           // Positions per slot that fit.
  std::atomic<uint64_t> resident_bytes = 0;  // Of all weights.
  std::unique_ptr<kernels::ThreadPool> pool;

  // How it came about.
  uint64_t tensor_bytes_read = 0;  // As in LoadProgress.
  uint64_t other_bytes_read = 0;
  uint64_t tensor_bytes_fetched = 0;
  uint64_t other_bytes_fetched = 0;
  bool from_cache = false;
  bool kept = false;  // From an epoch before; then the figures above are 0.
  // Why the folder of packed shards does not hold this one; OK when it does, or
  // there is no folder.
  absl::Status cache_status;
  // For the user: what went wrong there, and what had to be fetched.
  std::string warning;
  // Where `parts`, which are its weights, are yet to be written.
  std::optional<ShardCache> unsaved;
  std::vector<PackedPart> parts;
};

// What a worker was started with.
struct LoadSettings {
  int threads = 1;                  // Unless a request names a number.
  uint64_t memory_limit_bytes = 0;  // 0: the request's.
  std::string shard_cache;          // Empty: the request's.
  uint64_t available_memory_bytes = 0;
  std::string coordinator;  // Where sources without an address are.
  // Whether a shard that cannot be kept is of no use.
  bool only_packs = false;
  // Ends what is fetched from other hosts; null: nothing does.
  cluster::CancellableCalls* fetching = nullptr;
};

// Serves Worker.Load. `report` gets the fingerprint before a weight is read,
// then progress at most every 100 ms; a status it returns stops the load.
// Weights and cache must fit into what the host has available and into the
// limit. A folder of packed shards that is of no use is no error.
absl::StatusOr<std::unique_ptr<LoadedShard>> LoadShardFor(
    const v1::LoadRequest& request, const LoadSettings& settings,
    absl::FunctionRef<absl::Status(const v1::LoadProgress&)> report);

// Makes a shard that is loaded that of `request`, if its slices are those that
// it asks for: of the same files, as whatever rank of whatever mesh, with other
// slots and positions. False: they are not, and the shard is left as it is.
// Requires that nobody else uses it.
//
// Errors: those of LoadShardFor.
absl::StatusOr<bool> KeepShard(const v1::LoadRequest& request,
                               const LoadSettings& settings,
                               LoadedShard* shard);

// Serves Worker.Convert: puts the shard of a request into its folder, unless a
// sound one is there.
absl::Status PackShard(
    const v1::LoadRequest& request, const LoadSettings& settings,
    absl::FunctionRef<absl::Status(const v1::LoadProgress&)> report);

// The last message of a load.
v1::LoadProgress DoneMessage(const LoadedShard& shard);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_LOADED_SHARD_H_
