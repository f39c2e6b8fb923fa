// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_LAUNCH_UP_H_
#define RINGFLEET_COORDINATOR_CLI_LAUNCH_UP_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Adds the verb `ringfleet up`, which starts the processes of a cluster file on
// its hosts unless they run. The verb returns when the fleet can generate.
// Idempotent. Commands that start or stop one fleet wait for each other.
void RegisterUp(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LAUNCH_UP_H_
