// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_CHECKPOINT_CONVERT_H_
#define RINGFLEET_COORDINATOR_CLI_CHECKPOINT_CONVERT_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Adds the verb `ringfleet convert`, which packs the shards of a checkpoint, or
// compares a checkpoint with a manifest.
void RegisterConvert(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_CHECKPOINT_CONVERT_H_
