// SPDX-License-Identifier: Apache-2.0
// The Membership service: workers join the fleet, anyone watches its state.
#ifndef RINGFLEET_COORDINATOR_FLEET_MEMBERSHIP_SERVICE_H_
#define RINGFLEET_COORDINATOR_FLEET_MEMBERSHIP_SERVICE_H_

#include <cstdint>
#include <set>
#include <thread>

#include "cluster/rpc/active_calls.h"
#include "coordinator/fleet/fleet.h"
#include "kernels/mutex.h"
#include "protos/cluster.grpc.pb.h"

namespace ringfleet::coordinator {

// Thread-safe. A service of gRPC's callback API: no call takes a thread of the
// server's pool, so calls that hold all of these delay no heartbeat. One thread
// of the service tells all watchers of changes.
class MembershipService final : public v1::Membership::CallbackService {
 public:
  // Watches beyond it end with RESOURCE_EXHAUSTED.
  static constexpr size_t kMaxWatches = 256;

  // `fleet` must outlive the service.
  explicit MembershipService(Fleet* fleet);
  ~MembershipService() override;  // Requires that the server has ended.

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const v1::RegisterRequest* request,
                                     v1::RegisterResponse* response) override;
  // Logs when the process can start no thread.
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override;
  // Leaves out changes that come faster than the caller reads, except the last.
  // Ends after STOPPING.
  grpc::ServerWriteReactor<v1::ClusterState>* Watch(
      grpc::CallbackServerContext* context,
      const v1::WatchRequest* request) override;

  // Streams that are being served.
  cluster::ActiveCalls& calls() { return calls_; }

 private:
  class Watcher;

  void TellWatchers();  // Thread.
  void CheckThreads();

  Fleet* const fleet_;
  cluster::ActiveCalls calls_;

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::set<Watcher*> watchers_ ABSL_GUARDED_BY(mu_);
  cluster::Deadline check_threads_at_ ABSL_GUARDED_BY(mu_) =
      cluster::Deadline::After(absl::ZeroDuration());
  cluster::Deadline warn_of_threads_at_ ABSL_GUARDED_BY(mu_) =
      cluster::Deadline::After(absl::ZeroDuration());

  std::thread teller_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_MEMBERSHIP_SERVICE_H_
