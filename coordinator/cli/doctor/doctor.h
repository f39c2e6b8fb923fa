// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_DOCTOR_DOCTOR_H_
#define RINGFLEET_COORDINATOR_CLI_DOCTOR_DOCTOR_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Adds the verb `ringfleet doctor`, which measures hosts and network for
// `plan`, and gives advice.
void RegisterDoctor(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_DOCTOR_DOCTOR_H_
