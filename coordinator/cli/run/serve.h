// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_RUN_SERVE_H_
#define RINGFLEET_COORDINATOR_CLI_RUN_SERVE_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Adds the verb `ringfleet serve`: coordinator, workers and OpenAI's API on
// this machine, until SIGINT or SIGTERM.
void RegisterServe(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_RUN_SERVE_H_
