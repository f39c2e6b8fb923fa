// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_RUN_GENERATE_H_
#define RINGFLEET_COORDINATOR_CLI_RUN_GENERATE_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Adds the verb `ringfleet generate`, which continues a prompt on a running or
// a local fleet.
void RegisterGenerate(CLI::App& app, Invocation& invocation);

// Adds the verb `ringfleet submit`, which continues a prompt as a job of a
// running fleet.
void RegisterSubmit(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_RUN_GENERATE_H_
