// SPDX-License-Identifier: Apache-2.0
// The entry of a verb into the command line, and the exit of its result.
#ifndef RINGFLEET_COORDINATOR_CLI_COMMAND_H_
#define RINGFLEET_COORDINATOR_CLI_COMMAND_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace ringfleet::coordinator::cli {

// The work that main does once the command line is parsed.
struct Invocation {
  std::function<absl::Status()> run;  // Set by the verb that was chosen.
  bool json = false;                  // One JSON document on stdout.
};

// Adds one verb: its options, its group in the help text, a footer with
// examples, and a callback that sets `invocation.run`. Both arguments outlive
// the run. An error of `run` starts with the layer that failed, as in "call:
// ..." and "worker 2: ...".
using RegisterCommand = void (*)(CLI::App& app, Invocation& invocation);

// Adds -o/--output, which takes one of `formats`, and --json, which means
// -o json and excludes another format. `format` holds the default and outlives
// the run. A verb whose --output is a file passes fewer `names`.
void AddFormatOptions(CLI::App& verb, const std::vector<std::string>& formats,
                      std::string* format, const char* names = "-o,--output");

// Returns the exit code of a status. 0 done; 2 usage or bad input
// (INVALID_ARGUMENT, OUT_OF_RANGE, NOT_FOUND, ALREADY_EXISTS,
// PERMISSION_DENIED); 3 the fleet is unavailable, lost or late (UNAVAILABLE,
// DEADLINE_EXCEEDED, ABORTED, FAILED_PRECONDITION); 4 corrupt data (DATA_LOSS);
// 130 interrupted (CANCELLED, of this command's own interrupt); 1 anything
// else.
int ExitCode(const absl::Status& status);

// Prints "ringfleet: MESSAGE" as one line on stderr and, with `json`,
// {"error":{"code":"UNAVAILABLE","message":"..."}} on stdout.
void PrintError(const absl::Status& status, bool json);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_COMMAND_H_
