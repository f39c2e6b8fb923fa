// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_LAUNCH_DOWN_H_
#define RINGFLEET_COORDINATOR_CLI_LAUNCH_DOWN_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Adds the verb `ringfleet down`, which stops the processes of a cluster file
// on its hosts. Also stops processes that the fleet was started with and that
// the file does not have any more. Idempotent. Commands that start or stop one
// fleet wait for each other.
void RegisterDown(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LAUNCH_DOWN_H_
