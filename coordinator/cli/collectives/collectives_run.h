// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_COLLECTIVES_COLLECTIVES_RUN_H_
#define RINGFLEET_COORDINATOR_CLI_COLLECTIVES_COLLECTIVES_RUN_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "protos/cluster.pb.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator::cli {

// Idle workers, by rank.
struct BenchWorkers {
  std::vector<std::string> addresses;  // HOST:PORT
  std::vector<std::string> machines;  // Ranks with equal names share a machine.
  // Memory that ranks of a machine share, as they report it. May be empty.
  std::vector<std::vector<v1::ResourcePool>> memory = {};
};

// Replaces the names of machines by ids that the workers report, and fills in
// their memory. Keeps the name of a worker that does not answer.
//
// Errors: CANCELLED: an interrupt.
absl::Status FindMachines(BenchWorkers* workers);

// Runs the cases of `request` on all workers. Sets the request's rank,
// addresses, ranks on host and epoch. Returns the figures in the order of the
// cases. Calls `on_figures` from another thread with each result when it
// arrives.
//
// Errors: the error of one worker, with its rank and address. If several
// workers fail, the error that explains the failure best. CANCELLED: an
// interrupt.
absl::StatusOr<std::vector<v1::CollectiveFigures>> RunCollectives(
    const BenchWorkers& workers, v1::MeasureCollectivesRequest request,
    const std::function<void(const v1::CollectiveFigures&)>& on_figures);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_COLLECTIVES_COLLECTIVES_RUN_H_
