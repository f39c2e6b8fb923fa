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

// A rank's slices of one checkpoint, which it holds between epochs. Immutable,
// except that experts may move between two steps.
struct LoadedShard {
  v1::LoadRequest request;
  LoadOptions options;  // `experts` is null: see `layout`.
  cluster::ModelSpec spec;
  cluster::ShardPlan plan;
  cluster::ExpertLayout layout;  // All coordinates.
  kernels::Dtype cache_dtype = kernels::Dtype::kBf16;
  std::string fingerprint;
  std::string file_state;  // Checkpoint::FileState at load.
  Weights weights;
  std::optional<Weights> reference;  // Float32 copy, on request.
  int slots = 0;
  int context = 0;                           // Positions per slot that fit.
  std::atomic<uint64_t> resident_bytes = 0;  // All weights.
  std::unique_ptr<kernels::ThreadPool> pool;

  // Figures of the load, as in LoadProgress.
  uint64_t tensor_bytes_read = 0;
  uint64_t other_bytes_read = 0;
  uint64_t tensor_bytes_fetched = 0;
  uint64_t other_bytes_fetched = 0;
  bool from_cache = false;
  bool kept = false;  // Kept from an earlier epoch; the figures are then 0.
  // Reason why the folder of packed shards does not hold this shard. OK: it
  // does, or there is no folder.
  absl::Status cache_status;
  // Text for the user: failures of the folder, and bytes that were fetched.
  std::string warning;
  // Folder to which `parts` must still be written.
  std::optional<ShardCache> unsaved;
  std::vector<PackedPart> parts;  // Refer to the weights.
};

// Settings of the worker for a load.
struct LoadSettings {
  int threads = 1;                  // Default; a request may name a number.
  uint64_t memory_limit_bytes = 0;  // 0: the request's.
  std::string shard_cache;          // Empty: the request's.
  uint64_t available_memory_bytes = 0;
  std::string coordinator;  // Address of sources that name none.
  // True: the shard is only packed, and a folder that cannot hold it is an
  // error.
  bool only_packs = false;
  // Cancels fetches from other hosts; null: nothing does.
  cluster::CancellableCalls* fetching = nullptr;
};

// Serves Worker.Load. `report` gets the fingerprint before any weight is read,
// then progress at most every 100 ms. An error from `report` stops the load.
// Weights and cache must fit into the available memory and the limit. An
// unusable folder of packed shards is no error. LoadedShard::cache_status gives
// the reason.
//
// Errors: see Worker.Load in worker.proto.
absl::StatusOr<std::unique_ptr<LoadedShard>> LoadShardFor(
    const v1::LoadRequest& request, const LoadSettings& settings,
    absl::FunctionRef<absl::Status(const v1::LoadProgress&)> report);

// Adapts a loaded shard to `request`, and returns true. Rank, mesh, slots and
// positions may differ. Files and slices must be equal. Otherwise returns false
// and leaves the shard unchanged. Requires that nobody else uses the shard.
//
// Errors: those of LoadShardFor.
absl::StatusOr<bool> KeepShard(const v1::LoadRequest& request,
                               const LoadSettings& settings,
                               LoadedShard* shard);

// Serves Worker.Convert: writes the shard of a request to its folder, unless
// the folder has a sound file of the shard.
//
// Errors: those of LoadShardFor, and of the folder.
absl::Status PackShard(
    const v1::LoadRequest& request, const LoadSettings& settings,
    absl::FunctionRef<absl::Status(const v1::LoadProgress&)> report);

// Returns the last message of a load.
v1::LoadProgress DoneMessage(const LoadedShard& shard);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_LOADED_SHARD_H_
