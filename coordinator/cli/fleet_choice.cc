// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/fleet_choice.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/host_address.h"

namespace ringfleet::coordinator::cli {
namespace {

absl::Status AnotherFleet(const v1::ClusterState& answered,
                          const cluster::ClusterConfig& config) {
  return absl::InvalidArgumentError(absl::StrCat(
      "coordinator: ", CoordinatorAddressOf(config), " belongs to fleet ",
      answered.name(), " with model ", answered.model(), ", want fleet ",
      config.name, " with model ", config.settings.model()));
}

}  // namespace

FleetFlags AddFleetChoice(CLI::App& app, FleetChoice& choice) {
  FleetFlags flags;
  flags.cluster = app.add_option("--cluster", choice.cluster,
                                 "Cluster file of a running fleet");
  flags.coordinator = app.add_option("--coordinator", choice.coordinator,
                                     "HOST:PORT of the coordinator of a "
                                     "running fleet that has no file here")
                          ->excludes(flags.cluster);
  return flags;
}

absl::StatusOr<FleetPlace> FindFleet(const FleetChoice& choice) {
  FleetPlace place;
  if (!choice.cluster.empty()) {
    RF_ASSIGN_OR_RETURN(place.config,
                        cluster::LoadClusterConfig(choice.cluster));
    place.address = CoordinatorAddressOf(*place.config);
    return place;
  }
  if (choice.coordinator.empty()) {
    return absl::InvalidArgumentError(
        "usage: no fleet, want --cluster FILE or --coordinator HOST:PORT");
  }
  const absl::StatusOr<cluster::ServerAddress> address =
      cluster::ParseAddress(choice.coordinator);
  RF_RETURN_IF_ERROR(Annotate(address.status(), "usage: --coordinator"));
  if (address->port == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: --coordinator ", choice.coordinator,
                     ": port 0, want the one that it listens on"));
  }
  place.address = cluster::FormatAddress(*address);
  return place;
}

std::string CoordinatorAddressOf(const cluster::ClusterConfig& config) {
  return cluster::FormatAddress(
      {config.coordinator.host, config.coordinator.port});
}

absl::Status CheckFleetName(const v1::ClusterState& answered,
                            const cluster::ClusterConfig& config) {
  return answered.name() == config.name ? absl::OkStatus()
                                        : AnotherFleet(answered, config);
}

absl::Status CheckIsOfFile(const v1::ClusterState& answered,
                           const cluster::ClusterConfig& config) {
  return answered.name() == config.name &&
                 cluster::IsSameModel(answered.model(), config.settings.model())
             ? absl::OkStatus()
             : AnotherFleet(answered, config);
}

}  // namespace ringfleet::coordinator::cli
