// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_FLEET_CHOICE_H_
#define RINGFLEET_COORDINATOR_CLI_FLEET_CHOICE_H_

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/config/config.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator::cli {

// The running fleet that a command talks to. One of the two is given, or
// neither.
struct FleetChoice {
  std::string cluster;      // Path of the fleet's cluster file.
  std::string coordinator;  // HOST:PORT, for a fleet that has no file here.

  bool given() const { return !cluster.empty() || !coordinator.empty(); }
};

// The flags of a FleetChoice, which exclude each other.
struct FleetFlags {
  CLI::Option* cluster = nullptr;
  CLI::Option* coordinator = nullptr;
};

FleetFlags AddFleetChoice(CLI::App& app, FleetChoice& choice);

// The place of the chosen fleet.
struct FleetPlace {
  std::string address;  // HOST:PORT of its coordinator.
  std::optional<cluster::ClusterConfig> config;  // With --cluster.
};

// Errors: INVALID_ARGUMENT: neither flag is given, or the address is none.
// Those of LoadClusterConfig.
absl::StatusOr<FleetPlace> FindFleet(const FleetChoice& choice);

// Returns "HOST:PORT" of the file's coordinator.
std::string CoordinatorAddressOf(const cluster::ClusterConfig& config);

// Checks the name of the fleet that answers at the address of the file's
// coordinator. Error: INVALID_ARGUMENT, which names both fleets.
absl::Status CheckFleetName(const v1::ClusterState& answered,
                            const cluster::ClusterConfig& config);

// Checks the name and the model. Error: as CheckFleetName.
absl::Status CheckIsOfFile(const v1::ClusterState& answered,
                           const cluster::ClusterConfig& config);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_FLEET_CHOICE_H_
