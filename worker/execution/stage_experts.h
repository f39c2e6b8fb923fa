// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_EXECUTION_STAGE_EXPERTS_H_
#define RINGFLEET_WORKER_EXECUTION_STAGE_EXPERTS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/rpc/cancellable_calls.h"
#include "worker/execution/expert_migration.h"
#include "worker/execution/loaded_shard.h"

namespace ringfleet::worker {

// Experts that a rank has loaded for the next layout and does not use yet, for
// the model's weights and for those of the reference.
struct StagedWeights {
  StagedExperts main;
  std::optional<StagedExperts> reference;
};

// Loads the experts that the rank holds in layout `next` and not in layout
// `now`, from the checkpoint of the shard. Works on one thread of low priority,
// so steps continue. Calls `report` with the packed bytes after each expert. An
// error from `report` stops the load.
//
// Errors: DATA_LOSS: the checkpoint's files have changed since the load.
// RESOURCE_EXHAUSTED: the experts need more than `available_bytes`. Those of
// LoadExpert.
absl::StatusOr<StagedWeights> StageExperts(
    const LoadedShard& shard, const cluster::ExpertLayout& now,
    const cluster::ExpertLayout& next, uint64_t available_bytes,
    const std::string& coordinator, cluster::CancellableCalls* fetching,
    absl::FunctionRef<absl::Status(uint64_t done, uint64_t total)> report);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_STAGE_EXPERTS_H_
