// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_PLAN_PLAN_H_
#define RINGFLEET_COORDINATOR_CLI_PLAN_PLAN_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Adds the verb `ringfleet plan`, which tells if a model fits a fleet and
// predicts the model's speed.
void RegisterPlan(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_PLAN_PLAN_H_
