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
  std::vector<std::string> hosts;      // Equal: on the same machine.
};

// Asks all workers for the cases of `request`, whose rank, addresses, ranks on
// host and epoch are filled in here; returns the figures in the order of the
// cases. `on_figures` is called with each as it comes, from another thread,
// one at a time.
//
// Errors: of the worker that explains the failure best, by rank and address;
// CANCELLED: a signal came.
absl::StatusOr<std::vector<v1::CollectiveFigures>> RunCollectives(
    const BenchWorkers& workers, v1::MeasureCollectivesRequest request,
    const std::function<void(const v1::CollectiveFigures&)>& on_figures);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_COLLECTIVES_COLLECTIVES_RUN_H_
