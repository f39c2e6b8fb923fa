// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_EXPERTS_REBALANCE_H_
#define RINGFLEET_COORDINATOR_CLI_EXPERTS_REBALANCE_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Adds the verb `ringfleet rebalance`, which moves experts of a running fleet.
void RegisterRebalance(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_EXPERTS_REBALANCE_H_
