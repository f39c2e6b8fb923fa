// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_MEASURING_MEASURE_COLLECTIVES_H_
#define RINGFLEET_WORKER_MEASURING_MEASURE_COLLECTIVES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/transport/link_transport.h"
#include "protos/worker.pb.h"
#include "worker/measuring/collective_case.h"
#include "worker/measuring/fused_case.h"

namespace ringfleet::worker {

// A MeasureCollectivesRequest after all checks.
struct CollectivesPlan {
  struct Case {
    CollectiveCase::Spec spec;
    bool by_table = false;  // True: `table` has chosen spec.algorithm.
    // Set for a fused operation; `spec` then has only the operation.
    std::optional<FusedCase::Spec> fused;
  };

  cluster::AlgorithmTable table = cluster::AlgorithmTable::Default();
  std::vector<Case> cases;
  // Hash of all values that must be equal on all ranks: the parsed table, and
  // the fields of the request that do not differ from rank to rank.
  uint64_t config_hash = 0;
};

// Checks a request and returns its cases.
// Errors:
//   INVALID_ARGUMENT: a case or a field is wrong. The message names it.
//   RESOURCE_EXHAUSTED: the ranks of this host need more than `available_bytes`
//     bytes for a case.
absl::StatusOr<CollectivesPlan> PlanCollectives(
    const v1::MeasureCollectivesRequest& request, uint64_t available_bytes);

// Serves Worker.MeasureCollectives: connects the ranks, measures all cases and
// leaves the epoch. Calls `await_end` after the last case. `await_end` must
// return when all ranks have called it. CollectiveEndpoint::Interrupt ends the
// call early.
// Errors: those of PlanCollectives, CollectiveEndpoint::Connect, the
// collectives and `report`.
absl::Status MeasureCollectives(
    const v1::MeasureCollectivesRequest& request, uint64_t available_bytes,
    cluster::CollectiveEndpoint& endpoint,
    absl::FunctionRef<absl::Status(const v1::MeasureCollectivesProgress&)>
        report,
    absl::FunctionRef<void()> await_end);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MEASURING_MEASURE_COLLECTIVES_H_
