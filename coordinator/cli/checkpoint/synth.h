// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_CHECKPOINT_SYNTH_H_
#define RINGFLEET_COORDINATOR_CLI_CHECKPOINT_SYNTH_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Adds the verb `ringfleet synth`. A local worker writes a checkpoint of random
// weights.
void RegisterSynth(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_CHECKPOINT_SYNTH_H_
