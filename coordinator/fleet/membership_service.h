// SPDX-License-Identifier: Apache-2.0
// The Membership service: workers join the fleet, anyone watches its state.
#ifndef RINGFLEET_COORDINATOR_FLEET_MEMBERSHIP_SERVICE_H_
#define RINGFLEET_COORDINATOR_FLEET_MEMBERSHIP_SERVICE_H_

#include "cluster/rpc/active_calls.h"
#include "coordinator/fleet/fleet.h"
#include "protos/cluster.grpc.pb.h"

namespace ringfleet::coordinator {

// Thread-safe, with one thread per running call.
class MembershipService final : public v1::Membership::Service {
 public:
  // `fleet` must outlive the service.
  explicit MembershipService(Fleet* fleet) : fleet_(fleet) {}

  grpc::Status Register(grpc::ServerContext* context,
                        const v1::RegisterRequest* request,
                        v1::RegisterResponse* response) override;
  grpc::Status Heartbeat(grpc::ServerContext* context,
                         const v1::HeartbeatRequest* request,
                         v1::HeartbeatResponse* response) override;
  // Leaves out changes that come faster than the caller reads, except the last.
  // Ends after STOPPING.
  grpc::Status Watch(grpc::ServerContext* context,
                     const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::ClusterState>* writer) override;

  // Streams that are being served.
  cluster::ActiveCalls& calls() { return calls_; }

 private:
  Fleet* const fleet_;
  cluster::ActiveCalls calls_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_MEMBERSHIP_SERVICE_H_
