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

// A checked MeasureCollectivesRequest.
struct CollectivesPlan {
  struct Case {
    CollectiveCase::Spec spec;
    bool by_table = false;  // The table has chosen spec.algorithm.
    // Set for a fused operation, of which `spec` has the name only.
    std::optional<FusedCase::Spec> fused;
  };

  cluster::AlgorithmTable table = cluster::AlgorithmTable::Default();
  std::vector<Case> cases;
  // Hash of everything that ranks must have equal: the fields of the request
  // that are not a rank's own, and the parsed table.
  uint64_t config_hash = 0;
};

// Checks a request.
// Errors:
//   INVALID_ARGUMENT: names the case or the field.
//   RESOURCE_EXHAUSTED: the ranks of this host need more than
//     `available_bytes` for a case.
absl::StatusOr<CollectivesPlan> PlanCollectives(
    const v1::MeasureCollectivesRequest& request, uint64_t available_bytes);

// Serves Worker.MeasureCollectives, from connecting to leaving the epoch.
// `await_end` is called after the last case and returns when all ranks have
// reached it. CollectiveEndpoint::Interrupt ends the call early.
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
