// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_LAUNCH_STATUS_H_
#define RINGFLEET_COORDINATOR_CLI_LAUNCH_STATUS_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Adds the verb `ringfleet status`, which shows the state, the workers and the
// experts of a fleet.
void RegisterStatus(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LAUNCH_STATUS_H_
