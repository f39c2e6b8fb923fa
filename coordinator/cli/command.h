// SPDX-License-Identifier: Apache-2.0
// Entry of a verb into the command line, and exit codes of its result.
#ifndef RINGFLEET_COORDINATOR_CLI_COMMAND_H_
#define RINGFLEET_COORDINATOR_CLI_COMMAND_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::cli {

// The work that main does after it has parsed the command line.
struct Invocation {
  std::function<absl::Status()> run;  // Set by the user's verb.
  bool json = false;                  // True: stdout gets one JSON document.
};

// A function that adds one verb to `app`: its options, its group in the help
// text, a footer with examples, and a callback that sets `invocation.run`. Both
// arguments outlive the run. An error of `run` starts with the failed layer,
// such as "call: ..." or "worker 2: ...".
using RegisterCommand = void (*)(CLI::App& app, Invocation& invocation);

// Adds -o/--output, which takes one of `formats`, and --json, which means -o
// json. A command line cannot have --json and another format. `format` holds
// the default and must outlive the run. A verb whose --output is a file passes
// other `names`.
void AddFormatOptions(CLI::App& verb, const std::vector<std::string>& formats,
                      std::string* format, const char* names = "-o,--output");

// Returns the exit code of a status:
//   0: OK
//   1: any other code
//   2, usage or bad input: INVALID_ARGUMENT, OUT_OF_RANGE, NOT_FOUND,
//     ALREADY_EXISTS, PERMISSION_DENIED
//   3, the fleet is unavailable, lost or late: UNAVAILABLE, DEADLINE_EXCEEDED,
//     ABORTED, FAILED_PRECONDITION
//   4, corrupt data: DATA_LOSS
//   130, interrupted: CANCELLED, if this command was interrupted
int ExitCode(const absl::Status& status);

// Returns the error with the id of the job that it is about, for PrintError.
absl::Status WithJobId(absl::Status status, absl::string_view id);

// Prints "ringfleet: MESSAGE" as one line on stderr. If `json`, also prints
// {"error":{"code":"UNAVAILABLE","message":"..."}} on stdout, with "id" behind
// the message if the error is about a job.
void PrintError(const absl::Status& status, bool json);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_COMMAND_H_
