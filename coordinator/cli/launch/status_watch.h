// SPDX-License-Identifier: Apache-2.0
// `ringfleet status --watch`: shows a fleet's state again and again.
#ifndef RINGFLEET_COORDINATOR_CLI_LAUNCH_STATUS_WATCH_H_
#define RINGFLEET_COORDINATOR_CLI_LAUNCH_STATUS_WATCH_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/cli/fleet_choice.h"
#include "coordinator/cli/json_output.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator::cli {

// The work of a fleet in each second between two looks.
struct StatusRates {
  double prompt_tokens = 0;
  double generated_tokens = 0;
  double steps = 0;
  double step_sequences = 0;  // Mean of a step.
};

// Returns nothing if `after` is of another coordinator than `before`.
std::optional<StatusRates> RatesBetween(const v1::ClusterState& before,
                                        const v1::ClusterState& after,
                                        absl::Duration time);

// Returns the view of a terminal, as lines. `rates`: of the last interval, if
// known.
std::string WatchText(const v1::ClusterState& state,
                      const std::optional<StatusRates>& rates);

// Returns the document of `status` with "rates" behind it, null if not known.
Json WatchJson(const v1::ClusterState& state,
               const std::optional<StatusRates>& rates);

struct WatchOptions {
  FleetChoice fleet;
  absl::Duration interval;
  bool json = false;  // Each look prints one line of JSON.
};

// Prints the state once each interval until the command is interrupted, which
// is no error. Redraws a terminal. A coordinator that does not answer is said
// in place of the state.
//
// Errors: those of FindFleet and CheckIsOfFile. Those of PrintText.
absl::Status WatchStatus(const WatchOptions& options);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LAUNCH_STATUS_WATCH_H_
