// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_CHECKPOINT_INSPECT_H_
#define RINGFLEET_COORDINATOR_CLI_CHECKPOINT_INSPECT_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Adds the verb `ringfleet inspect`, which prints the content of a checkpoint
// by its headers.
void RegisterInspect(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_CHECKPOINT_INSPECT_H_
