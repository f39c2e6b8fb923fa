// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_BINARIES_H_
#define RINGFLEET_COORDINATOR_CLI_BINARIES_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::cli {

// Returns the folder of the programs: $RINGFLEET_BIN_DIR, else the running
// program's folder.
std::string BinaryFolder();

// Returns the path of the program `name` in BinaryFolder().
std::string BinaryPath(absl::string_view name);

// Returns the path of the launch script: fleet.sh in $RINGFLEET_LAUNCH_DIR,
// else in ../share/ringfleet/launch/ssh beside the running program's folder. An
// installation has that folder; in a build tree it is a link to cluster/launch.
//
// Errors: NOT_FOUND: no executable script is there.
absl::StatusOr<std::string> LaunchScriptPath();

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_BINARIES_H_
