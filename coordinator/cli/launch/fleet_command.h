// SPDX-License-Identifier: Apache-2.0
// Parts that `up` and `down` share.
#ifndef RINGFLEET_COORDINATOR_CLI_LAUNCH_FLEET_COMMAND_H_
#define RINGFLEET_COORDINATOR_CLI_LAUNCH_FLEET_COMMAND_H_

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/config/config.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/launcher.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator::cli {

// Options of both verbs.
struct FleetCommand {
  std::string cluster;  // Path of the cluster file.
  std::string hosts;    // Ranks or kCoordinatorLabel. Empty: the whole fleet.
  std::string output = "text";
  double timeout_s = 1800;  // Enough for a large checkpoint on a slow disk.
  bool force = false;       // `down`: stops also a fleet of another file.
};

// Name of the coordinator in `--hosts` and in the output of the launch script.
inline constexpr char kCoordinatorLabel[] = "coordinator";

// Time between two requests for a coordinator's state.
inline constexpr std::chrono::milliseconds kNoticeInterval{50};

// Adds the verb `name` with the options of FleetCommand and those that
// `add_more` adds. The verb calls `run`.
void RegisterFleetCommand(CLI::App& app, Invocation& invocation,
                          const char* name, const char* description,
                          const char* footer,
                          absl::Status (*run)(const FleetCommand&),
                          void (*add_more)(CLI::App&, FleetCommand&));

// Waits until no other command starts or stops the fleet from this machine, and
// returns the lock. Errors: those of FleetLock::Acquire.
absl::StatusOr<FleetLock> LockFleet(const cluster::ClusterConfig& config,
                                    const FleetCommand& options);

// Stops processes that a running fleet was started with and that its cluster
// file does not have any more.
absl::Status StopWhatFileLacks(const cluster::ClusterConfig& config,
                               const v1::ClusterState& running);

// Prints {epoch, state, workers}, as JSON or as text.
absl::Status PrintFleet(const Json& summary, const FleetCommand& options);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LAUNCH_FLEET_COMMAND_H_
