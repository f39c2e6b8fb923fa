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
#include "worker/loading/open_checkpoint.h"
#include "worker/loading/packed_shard.h"
#include "worker/loading/shard_cache.h"
#include "worker/loading/shard_loader.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// A rank's slices of one checkpoint. A worker keeps the slices between epochs.
// Immutable, except that experts may move between two steps.
struct LoadedShard {
  v1::LoadRequest request;
  LoadOptions options;  // `experts` is null; `layout` has the experts.
  cluster::ModelSpec spec;
  cluster::ShardPlan plan;
  cluster::ExpertLayout layout;  // Experts of all coordinates.
  kernels::Dtype cache_dtype = kernels::Dtype::kBf16;
  std::string fingerprint;
  std::string file_state;  // Checkpoint::FileState at the time of the load.
  Weights weights;
  std::optional<Weights> reference;  // Float32 copy, if the request wants it.
  int slots = 0;                     // In each data group.
  // Sizes of the cache that memory allows.
  int context = 0;       // Positions of a sequence.
  int cache_blocks = 0;  // They hold a sequence of `context` positions.
  std::atomic<uint64_t> resident_bytes = 0;  // Bytes of both sets of weights.
  std::unique_ptr<kernels::ThreadPool> pool;

  // Figures of the load. LoadProgress describes each.
  uint64_t tensor_bytes_read = 0;
  uint64_t other_bytes_read = 0;
  uint64_t tensor_bytes_fetched = 0;
  uint64_t other_bytes_fetched = 0;
  bool from_cache = false;
  // True: KeepShard has adapted the shard of an earlier epoch. The figures are
  // then 0.
  bool kept = false;
  // The reason why the folder of packed shards does not hold this shard. OK:
  // the folder holds the shard, or there is no folder.
  absl::Status cache_status;
  // Text for the user. Names a failure of the folder, and bytes that were
  // fetched.
  std::string warning;
  // The cache to which `parts` must still be written. Unset: nothing to write.
  std::optional<ShardCache> unsaved;
  std::vector<PackedPart> parts;  // Refer to the memory of `weights`.
};

// The worker's settings for a load.
struct LoadSettings {
  int threads = 1;  // Number of threads if the request names none.
  uint64_t memory_limit_bytes = 0;      // 0: the request's limit applies.
  std::string shard_cache;              // Empty: the request's folder applies.
  uint64_t available_memory_bytes = 0;  // The host's.
  uint64_t held_bytes = 0;  // Freed before the load; PlanLoad counts them too.
  std::string coordinator;  // Address of file sources that have none.
  // True: the load only packs the shard. An unusable folder is then an error.
  bool only_packs = false;
  // Cancels fetches from other hosts. Null: fetches cannot be cancelled.
  cluster::CancellableCalls* fetching = nullptr;
};

// A load whose request is checked and whose checkpoint is open.
struct PlannedLoad {
  // For the checkpoint, where the settings have none to end its fetches.
  std::unique_ptr<cluster::CancellableCalls> never_cancelled;
  OpenedCheckpoint opened;
  std::unique_ptr<LoadedShard> shard;  // Without weights.
  uint64_t packed_bytes = 0;
  uint64_t weight_bytes = 0;  // With those of the reference.
};

// Checks a request and opens its checkpoint, without memory for weights.
// Weights and cache must fit into the available memory and the limit.
//
// Errors: see Worker.Load in worker.proto.
absl::StatusOr<PlannedLoad> PlanLoad(const v1::LoadRequest& request,
                                     const LoadSettings& settings);

// Loads what PlanLoad has planned for the same request. Calls `report` with the
// fingerprint before it reads a weight, and then with progress at most every
// 100 ms. An error from `report` stops the load. An unusable folder of packed
// shards is an error only if settings.only_packs. LoadedShard::cache_status
// gives the reason.
//
// Errors: see Worker.Load in worker.proto.
absl::StatusOr<std::unique_ptr<LoadedShard>> LoadPlanned(
    const v1::LoadRequest& request, const LoadSettings& settings,
    PlannedLoad planned,
    absl::FunctionRef<absl::Status(const v1::LoadProgress&)> report);

// Calls PlanLoad and LoadPlanned.
absl::StatusOr<std::unique_ptr<LoadedShard>> LoadShardFor(
    const v1::LoadRequest& request, const LoadSettings& settings,
    absl::FunctionRef<absl::Status(const v1::LoadProgress&)> report);

// Adapts a loaded shard to `request`, which is planned, and returns "" if the
// request wants equal slices of equal files. Rank, mesh, number of slots and
// positions may differ. Otherwise returns the first difference, as in
// LoadProgress.reload_cause, and leaves the shard unchanged. Requires that
// nobody else uses the shard.
//
// Errors: RESOURCE_EXHAUSTED as of PlanLoad.
absl::StatusOr<std::string> KeepShard(const v1::LoadRequest& request,
                                      const LoadSettings& settings,
                                      const PlannedLoad& planned,
                                      LoadedShard* shard);

// Serves Worker.Convert: writes the shard of `request` to the folder of packed
// shards. Writes nothing if the folder has an undamaged file of the shard.
//
// Errors: those of LoadShardFor and ShardCache::Write. INVALID_ARGUMENT:
// neither request nor settings name a folder.
absl::Status PackShard(
    const v1::LoadRequest& request, const LoadSettings& settings,
    absl::FunctionRef<absl::Status(const v1::LoadProgress&)> report);

// Returns the last LoadProgress of a load.
v1::LoadProgress DoneMessage(const LoadedShard& shard);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_LOADED_SHARD_H_
