// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_COLLECTIVES_COLLECTIVES_RUN_H_
#define RINGFLEET_COORDINATOR_CLI_COLLECTIVES_COLLECTIVES_RUN_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator::cli {

// Idle workers, by rank.
struct BenchWorkers {
  std::vector<std::string> addresses;  // HOST:PORT
  std::vector<std::string> hosts;      // Equal names: one machine.
};

// Runs the cases of `request` on all workers. Fills in its rank, addresses,
// ranks on host and epoch. Returns the figures in the order of the cases. Calls
// `on_figures` with each result as it comes, from another thread, one at a
// time.
//
// Errors: the error of the worker that explains the failure best, with its rank
//   and address. CANCELLED: a signal came.
absl::StatusOr<std::vector<v1::CollectiveFigures>> RunCollectives(
    const BenchWorkers& workers, v1::MeasureCollectivesRequest request,
    const std::function<void(const v1::CollectiveFigures&)>& on_figures);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_COLLECTIVES_COLLECTIVES_RUN_H_
