// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_FLEET_JSON_H_
#define RINGFLEET_COORDINATOR_CLI_FLEET_JSON_H_

#include <string>

#include "coordinator/cli/json_output.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator::cli {

// Returns "waiting", "loading", "ready", "failed" or "stopping".
std::string FleetStateName(v1::FleetState state);
// Returns true if every rank has a worker. Such a fleet does not try again by
// itself after a failure.
bool IsWhole(const v1::ClusterState& state);
// Returns "registered", "loading", "ready" or "lost".
std::string MemberStateName(v1::MemberState state);

// Returns {epoch, state, workers: [{rank, address, state, pid}]}, the document
// of `up` and `down`.
Json FleetSummary(const v1::ClusterState& state);

// Returns the document of `status`: the summary's keys, model, mesh and
// requests, and version, resident_bytes and cache_bytes of each worker.
Json FleetDetails(const v1::ClusterState& state);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_FLEET_JSON_H_
