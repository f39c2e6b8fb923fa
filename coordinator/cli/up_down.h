// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_UP_DOWN_H_
#define RINGFLEET_COORDINATOR_CLI_UP_DOWN_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// `ringfleet up` and `ringfleet down`: start and stop the processes of a
// cluster file on its hosts. Both are idempotent; two at once take turns.
void RegisterUp(CLI::App& app, Invocation& invocation);
void RegisterDown(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_UP_DOWN_H_
