// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_LAUNCH_FLEET_JSON_H_
#define RINGFLEET_COORDINATOR_CLI_LAUNCH_FLEET_JSON_H_

#include <string>

#include "coordinator/cli/json_output.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator::cli {

// "waiting", "loading", "ready", "failed", "stopping".
std::string FleetStateName(v1::FleetState state);
// Whether every rank has a worker. What such a fleet has failed in, it does not
// try again by itself.
bool IsWhole(const v1::ClusterState& state);
// "registered", "loading", "ready", "lost".
std::string MemberStateName(v1::MemberState state);

// {epoch, state, workers: [{rank, address, state, pid}]}: `up` and `down`.
Json FleetSummary(const v1::ClusterState& state);

// What `status` prints: the summary's keys and model, mesh, requests, and of
// each worker version, resident_bytes, cache_bytes.
Json FleetDetails(const v1::ClusterState& state);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LAUNCH_FLEET_JSON_H_
