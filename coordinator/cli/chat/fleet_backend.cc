// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/chat/fleet_backend.h"

#include <memory>

#include "absl/time/time.h"
#include "coordinator/cli/interrupt.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr absl::Duration kReconnectTime = absl::Milliseconds(500);

}  // namespace

absl::StatusOr<Generated> FleetBackend::Ask(const v1::GenerateRequest& request,
                                            const OnPiece& on_piece) {
  // Meets a coordinator that has come back since the last question.
  session_->AwaitConnection(kReconnectTime);
  InterruptibleCall call;
  {
    MutexLock lock(&mu_);
    call_ = call.context();
  }
  // The coordinator ends the job of a caller who leaves.
  const std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> reader =
      session_->stub().Generate(call.context(), request);
  absl::StatusOr<Generated> generated = ReadEvents(call, *reader, on_piece);
  MutexLock lock(&mu_);
  call_ = nullptr;
  return generated;
}

void FleetBackend::Stop() {
  MutexLock lock(&mu_);
  if (call_ != nullptr) call_->TryCancel();
}

}  // namespace ringfleet::coordinator::cli
