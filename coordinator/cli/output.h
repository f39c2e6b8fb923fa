// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_OUTPUT_H_
#define RINGFLEET_COORDINATOR_CLI_OUTPUT_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::cli {

// Writes to standard output at once. A closed pipe interrupts the command,
// which then cleans up and ends with the exit code of SIGPIPE. Needs the
// process's Interrupt, which makes a closed pipe an error. Call from main's
// thread.
//
// Errors: CANCELLED: nobody reads. RESOURCE_EXHAUSTED: the text cannot be
// written, as on a full disk.
absl::Status PrintText(absl::string_view text);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_OUTPUT_H_
