// SPDX-License-Identifier: Apache-2.0
// The other side of a chat: a fleet, or a server of OpenAI's API.
#ifndef RINGFLEET_COORDINATOR_CLI_CHAT_CHAT_BACKEND_H_
#define RINGFLEET_COORDINATOR_CLI_CHAT_CHAT_BACKEND_H_

#include "absl/status/statusor.h"
#include "coordinator/cli/run/generated.h"
#include "protos/coordinator.pb.h"

namespace ringfleet::coordinator::cli {

// For one thread, but for Stop.
class ChatBackend {
 public:
  virtual ~ChatBackend() = default;

  // Asks for the answer to a conversation, which is the request's prompt. The
  // result's ids and probabilities may be missing. Its times may be those that
  // this side has seen.
  // Errors: the answer's; those of `on_piece`; CANCELLED after Stop.
  virtual absl::StatusOr<Generated> Ask(const v1::GenerateRequest& request,
                                        const OnPiece& on_piece) = 0;
  // Ends the call of Ask that runs. Any thread may call it.
  virtual void Stop() = 0;
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_CHAT_CHAT_BACKEND_H_
