// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_LAUNCH_DOWN_H_
#define RINGFLEET_COORDINATOR_CLI_LAUNCH_DOWN_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// `ringfleet down`: stops the processes of a cluster file on its hosts, and
// processes that the fleet was started with and the file has no longer.
// Idempotent. Commands that start or stop one fleet take turns.
void RegisterDown(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LAUNCH_DOWN_H_
