// SPDX-License-Identifier: Apache-2.0
// `ringfleet call`: lists, describes and calls what any gRPC server offers.
#ifndef RINGFLEET_COORDINATOR_CLI_LAUNCH_CALL_H_
#define RINGFLEET_COORDINATOR_CLI_LAUNCH_CALL_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

void RegisterCall(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LAUNCH_CALL_H_
