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

// A MeasureCollectivesRequest that can be trusted.
struct CollectivesPlan {
  struct Case {
    CollectiveCase::Spec spec;
    bool by_table = false;  // spec.algorithm is what the table chooses.
    // Of an operation that is fused with a product, which `spec` only names.
    std::optional<FusedCase::Spec> fused;
  };

  cluster::AlgorithmTable table = cluster::AlgorithmTable::Default();
  std::vector<Case> cases;
  // Of everything in which ranks must not differ: the request but for what is
  // a rank's own, and the table as it was understood here.
  uint64_t config_hash = 0;
};

// Errors:
//   INVALID_ARGUMENT: names the case or the field.
//   RESOURCE_EXHAUSTED: the ranks of this host need more than
//     `available_bytes` for a case.
absl::StatusOr<CollectivesPlan> PlanCollectives(
    const v1::MeasureCollectivesRequest& request, uint64_t available_bytes);

// What the MeasureCollectives call does, from connecting to leaving the epoch.
// `await_end` is called after the last case and returns when all ranks have
// come so far. CollectiveEndpoint::Interrupt ends it early. Errors: of
// PlanCollectives, CollectiveEndpoint::Connect, the collectives and `report`.
absl::Status MeasureCollectives(
    const v1::MeasureCollectivesRequest& request, uint64_t available_bytes,
    cluster::CollectiveEndpoint& endpoint,
    absl::FunctionRef<absl::Status(const v1::MeasureCollectivesProgress&)>
        report,
    absl::FunctionRef<void()> await_end);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MEASURING_MEASURE_COLLECTIVES_H_
