// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_RUN_TOKENIZE_H_
#define RINGFLEET_COORDINATOR_CLI_RUN_TOKENIZE_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Add the verbs `ringfleet tokenize` and `ringfleet detokenize`, which turn
// text into ids and back with the tokenizer of a model folder or of a running
// fleet.
void RegisterTokenize(CLI::App& app, Invocation& invocation);
void RegisterDetokenize(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_RUN_TOKENIZE_H_
