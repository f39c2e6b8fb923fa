// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_EXPERTS_EPLB_H_
#define RINGFLEET_COORDINATOR_CLI_EXPERTS_EPLB_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Adds the verb `ringfleet eplb`, which places copies of experts by measured
// loads.
void RegisterEplb(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_EXPERTS_EPLB_H_
