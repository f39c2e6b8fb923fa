// SPDX-License-Identifier: Apache-2.0
// Compares a cluster file with the running fleet. The fleet may have been
// started with an earlier version of the file.
#ifndef RINGFLEET_COORDINATOR_CLI_LAUNCH_CONFIG_CHANGE_H_
#define RINGFLEET_COORDINATOR_CLI_LAUNCH_CONFIG_CHANGE_H_

#include <string>

#include "cluster/config/config.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator::cli {

// Returns the first setting that differs between the running fleet and
// `wanted`, such as "'model: A', not 'model: B'". Returns an empty text if no
// setting differs, or if the running fleet was started without a file. Settings
// of the running fleet that this version cannot read are a difference. Live
// settings and the ssh section are not compared. The host of a lost rank is not
// compared either, because a worker on another host may take the rank.
std::string ConfigChange(const v1::ClusterState& running,
                         const cluster::ClusterConfig& wanted);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LAUNCH_CONFIG_CHANGE_H_
