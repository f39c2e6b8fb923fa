// SPDX-License-Identifier: Apache-2.0
// Compares a cluster file with the running fleet, which may have been started
// from an earlier version of the file.
#ifndef RINGFLEET_COORDINATOR_CLI_LAUNCH_CONFIG_CHANGE_H_
#define RINGFLEET_COORDINATOR_CLI_LAUNCH_CONFIG_CHANGE_H_

#include <string>

#include "cluster/config/config.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator::cli {

// Returns the first setting in which a running fleet differs from `wanted`:
// "'model: A', not 'model: B'". Returns "" if there is none, or if the running
// fleet was started without a file. A fleet whose settings this version cannot
// read differs in them. Live settings, the way to the
// hosts and the host of a lost rank do not count: a lost rank may have a
// successor elsewhere, or has one there already.
std::string ConfigChange(const v1::ClusterState& running,
                         const cluster::ClusterConfig& wanted);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LAUNCH_CONFIG_CHANGE_H_
