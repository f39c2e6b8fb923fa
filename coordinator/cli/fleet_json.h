// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_FLEET_JSON_H_
#define RINGFLEET_COORDINATOR_CLI_FLEET_JSON_H_

#include <cstdint>
#include <string>

#include "coordinator/cli/json_output.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator::cli {

// Returns "waiting", "loading", "ready", "failed" or "stopping".
std::string FleetStateName(v1::FleetState state);
// Returns whether every rank has a worker. A fleet that has failed with all its
// workers does not form again by itself.
bool IsWhole(const v1::ClusterState& state);
// Data groups of a fleet. A group that has lost a worker does not serve; none
// does unless the fleet is ready.
struct DataGroups {
  uint32_t serving = 0;
  uint32_t total = 0;
};
DataGroups DataGroupsOf(const v1::ClusterState& state);

// Returns "ready", or "ready, degraded: 1 of 2 data groups".
std::string FleetStateText(const v1::ClusterState& state);

// Returns "registered", "loading", "ready" or "lost".
std::string MemberStateName(v1::MemberState state);

// Returns the document that `up` and `down` print: {epoch, state, workers:
// [{rank, address, state, pid}]}.
Json FleetSummary(const v1::ClusterState& state);

// Returns the document that `status` prints: the keys of FleetSummary, model,
// mesh, data groups, requests, cache and totals of steps, and in each worker
// version, bytes, collectives and round trips.
Json FleetDetails(const v1::ClusterState& state);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_FLEET_JSON_H_
