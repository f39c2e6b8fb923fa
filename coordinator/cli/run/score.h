// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_RUN_SCORE_H_
#define RINGFLEET_COORDINATOR_CLI_RUN_SCORE_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Adds the verb `ringfleet score`, which prints the model's probabilities of a
// given text.
void RegisterScore(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_RUN_SCORE_H_
