// SPDX-License-Identifier: Apache-2.0
// Adds the verb `ringfleet call`, which lists, describes and calls the methods
// of any gRPC server.
#ifndef RINGFLEET_COORDINATOR_CLI_LAUNCH_CALL_H_
#define RINGFLEET_COORDINATOR_CLI_LAUNCH_CALL_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

void RegisterCall(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LAUNCH_CALL_H_
