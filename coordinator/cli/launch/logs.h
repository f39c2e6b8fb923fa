// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_LAUNCH_LOGS_H_
#define RINGFLEET_COORDINATOR_CLI_LAUNCH_LOGS_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Adds the verb `ringfleet logs`, which prints the logs of a fleet's processes.
void RegisterLogs(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LAUNCH_LOGS_H_
