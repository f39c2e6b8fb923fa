// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_BINARIES_H_
#define RINGFLEET_COORDINATOR_CLI_BINARIES_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::cli {

// Returns the folder of the programs: $RINGFLEET_BIN_DIR if set, else the
// folder of the running program.
std::string BinaryFolder();

// Returns the path of the program `name` in BinaryFolder().
std::string BinaryPath(absl::string_view name);

// Returns the path of the launch script fleet.sh. The script lies in
// $RINGFLEET_LAUNCH_DIR if set, else in ../share/ringfleet/launch/ssh relative
// to the folder of the running program. In a build tree,
// ../share/ringfleet/launch is a link to cluster/launch.
//
// Errors: NOT_FOUND: the folder has no executable fleet.sh.
absl::StatusOr<std::string> LaunchScriptPath();

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_BINARIES_H_
