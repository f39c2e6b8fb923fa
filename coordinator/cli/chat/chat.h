// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_CHAT_CHAT_H_
#define RINGFLEET_COORDINATOR_CLI_CHAT_CHAT_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Adds the verb `ringfleet chat`, a conversation in the terminal or in a pipe.
void RegisterChat(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_CHAT_CHAT_H_
