// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_CHAT_FLEET_BACKEND_H_
#define RINGFLEET_COORDINATOR_CLI_CHAT_FLEET_BACKEND_H_

#include "coordinator/cli/chat/chat_backend.h"
#include "coordinator/cli/session.h"
#include "kernels/mutex.h"
#include "protos/coordinator.grpc.pb.h"

namespace ringfleet::coordinator::cli {

// Asks a coordinator, which renders the conversation.
class FleetBackend final : public ChatBackend {
 public:
  // `session` must outlive this object.
  explicit FleetBackend(Session* session) : session_(session) {}

  absl::StatusOr<Generated> Ask(const v1::GenerateRequest& request,
                                const OnPiece& on_piece) override;
  void Stop() override;

 private:
  Session* const session_;
  Mutex mu_;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mu_) = nullptr;  // That runs.
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_CHAT_FLEET_BACKEND_H_
