// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_OUTPUT_H_
#define RINGFLEET_COORDINATOR_CLI_OUTPUT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::cli {

// Returns `text` as a part of one line that a terminal takes for nothing else:
// control characters and ends of lines become spaces, ill-formed UTF-8 becomes
// U+FFFD. Texts of a peer, names and paths may have them.
std::string OneLine(absl::string_view text);

// Returns a JSON document with DEL and the controls U+0080 to U+009F as
// escapes. The other controls cannot stand in JSON.
std::string EscapeControls(std::string json);

// Writes `text` to standard output without buffering. If nobody reads the
// output any more, interrupts the command with kOutputClosedExit. Requires an
// Interrupt in the process. Call from main's thread.
//
// Errors: CANCELLED: nobody reads. RESOURCE_EXHAUSTED: the text cannot be
// written, for example to a full disk.
absl::Status PrintText(absl::string_view text);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_OUTPUT_H_
