// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_LAUNCH_UP_H_
#define RINGFLEET_COORDINATOR_CLI_LAUNCH_UP_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// `ringfleet up`: starts the processes of a cluster file on its hosts unless
// they run, and returns when the fleet can generate. Idempotent. Commands that
// start or stop one fleet take turns.
void RegisterUp(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LAUNCH_UP_H_
