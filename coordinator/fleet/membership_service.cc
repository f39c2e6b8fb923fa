// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/membership_service.h"

#include <utility>

#include "absl/time/time.h"
#include "cluster/process/deadline.h"
#include "cluster/process/status.h"

namespace ringfleet::coordinator {
namespace {

// How soon a watcher that has gone is noticed.
constexpr absl::Duration kMemberPoll = absl::Milliseconds(100);

}  // namespace

grpc::Status MembershipService::Register(grpc::ServerContext*,
                                         const v1::RegisterRequest* request,
                                         v1::RegisterResponse* response) {
  auto registered = fleet_->Register(*request);
  if (!registered.ok()) return cluster::ToGrpc(registered.status());
  *response = *std::move(registered);
  return grpc::Status::OK;
}

grpc::Status MembershipService::Heartbeat(grpc::ServerContext*,
                                          const v1::HeartbeatRequest* request,
                                          v1::HeartbeatResponse*) {
  return cluster::ToGrpc(fleet_->Heartbeat(*request));
}

grpc::Status MembershipService::Watch(
    grpc::ServerContext* context, const v1::WatchRequest*,
    grpc::ServerWriter<v1::ClusterState>* writer) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  uint64_t version = 0;  // Below the first one: the state comes at once.
  while (!context->IsCancelled()) {
    if (!fleet_->WaitForChange(&version,
                               cluster::Deadline::After(kMemberPoll))) {
      continue;
    }
    const v1::ClusterState state = fleet_->State();
    if (!writer->Write(state)) break;
    if (state.state() == v1::FLEET_STATE_STOPPING) break;
  }
  return grpc::Status::OK;
}

}  // namespace ringfleet::coordinator
