// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_LAUNCH_BINARIES_H_
#define RINGFLEET_COORDINATOR_CLI_LAUNCH_BINARIES_H_

#include <string>

#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::cli {

// Path of another of our programs: in $RINGFLEET_BIN_DIR, else beside the
// running one.
std::string BinaryPath(absl::string_view name);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LAUNCH_BINARIES_H_
