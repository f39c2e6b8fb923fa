// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_OUTPUT_H_
#define RINGFLEET_COORDINATOR_CLI_OUTPUT_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::cli {

// Writes to standard output, at once. When nobody reads it any more (a closed
// pipe) the command is interrupted, so that it cleans up, with the exit code
// that SIGPIPE would have given it. Needs the process's Interrupt, which makes
// the kernel tell so by an error. From main's thread.
//
// Errors: CANCELLED: nobody reads. RESOURCE_EXHAUSTED: cannot be written, as on
// a full disk.
absl::Status PrintText(absl::string_view text);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_OUTPUT_H_
