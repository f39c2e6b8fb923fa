// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_OUTPUT_H_
#define RINGFLEET_COORDINATOR_CLI_OUTPUT_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::cli {

// Writes `text` to standard output without buffering. If nobody reads the
// output any more, interrupts the command with kOutputClosedExit. Requires an
// Interrupt in the process. Call from main's thread.
//
// Errors: CANCELLED: nobody reads. RESOURCE_EXHAUSTED: the text cannot be
// written, for example to a full disk.
absl::Status PrintText(absl::string_view text);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_OUTPUT_H_
