// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_CONFIG_CHANGE_H_
#define RINGFLEET_COORDINATOR_CLI_CONFIG_CHANGE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "cluster/config.h"

namespace ringfleet::coordinator::cli {

// The first line in which a fleet that runs, described by `running` (a
// ClusterState's cluster_file), differs from `wanted`:
// "'model: A', not 'model: B'". Empty if it differs in nothing, or if what it
// was started with is unknown. How its hosts are reached, where logs go and
// ports that nothing listens on do not count.
std::string ConfigChange(absl::string_view running,
                         const cluster::ClusterConfig& wanted);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_CONFIG_CHANGE_H_
