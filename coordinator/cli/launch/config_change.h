// SPDX-License-Identifier: Apache-2.0
// A cluster file against the fleet that runs, which may have been started from
// an earlier version of it.
#ifndef RINGFLEET_COORDINATOR_CLI_LAUNCH_CONFIG_CHANGE_H_
#define RINGFLEET_COORDINATOR_CLI_LAUNCH_CONFIG_CHANGE_H_

#include <string>

#include "cluster/config/config.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator::cli {

// The first setting in which a fleet that runs differs from `wanted`:
// "'model: A', not 'model: B'". Empty if it differs in nothing, or if nobody
// knows what it was started with. What does not count: how hosts are reached,
// where logs go, ports that nothing listens on, and the host of a rank that is
// lost, which may have a successor, or that has one there already.
std::string ConfigChange(const v1::ClusterState& running,
                         const cluster::ClusterConfig& wanted);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LAUNCH_CONFIG_CHANGE_H_
