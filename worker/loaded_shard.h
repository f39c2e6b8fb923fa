// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_LOADED_SHARD_H_
#define RINGFLEET_WORKER_LOADED_SHARD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "cluster/model_spec.h"
#include "cluster/shard_plan.h"
#include "kernels/dtype.h"
#include "kernels/thread_pool.h"
#include "protos/worker.pb.h"
#include "worker/weights.h"

namespace ringfleet::worker {

// What a rank holds between epochs: its slices of one checkpoint. Immutable.
struct LoadedShard {
  cluster::ModelSpec spec;
  cluster::ShardPlan plan;
  kernels::Dtype cache_dtype = kernels::Dtype::kBf16;
  std::string fingerprint;
  Weights weights;
  std::optional<Weights> reference;  // Plain float32, on request.
  int slots = 0;
  int context = 0;              // Positions per slot that fit.
  uint64_t resident_bytes = 0;  // Of all weights.
  std::unique_ptr<kernels::ThreadPool> pool;
};

// Serves Worker.Load. `report` gets the fingerprint before a weight is read,
// then progress at most every 100 ms; a status it returns stops the load.
// `default_threads` applies where the request leaves them open. Weights and
// cache must fit into what the host has available and into the limit:
// `own_limit_bytes` if it is not 0, else the request's if that is not 0.
absl::StatusOr<std::unique_ptr<LoadedShard>> LoadShardFor(
    const v1::LoadRequest& request, int default_threads,
    uint64_t own_limit_bytes, uint64_t available_memory_bytes,
    absl::FunctionRef<absl::Status(const v1::LoadProgress&)> report);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADED_SHARD_H_
