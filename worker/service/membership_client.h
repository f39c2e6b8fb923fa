// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_SERVICE_MEMBERSHIP_CLIENT_H_
#define RINGFLEET_WORKER_SERVICE_MEMBERSHIP_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/mutex.h"
#include "protos/cluster.grpc.pb.h"

namespace ringfleet::worker {

// Keeps this worker registered by a thread of its own. The thread registers
// with the coordinator, which may start later or restart, and renews the lease
// until destruction.
class MembershipClient {
 public:
  // Run on the client's thread. Null: not called.
  struct Hooks {
    // Adds to a registration what the worker knows at the moment.
    std::function<void(v1::RegisterRequest*)> begin_registration;
    // Follows each begin_registration, with RegisterResponse.coordinator_id;
    // empty: the registration has failed.
    std::function<void(const std::string& coordinator_id)> end_registration;
    // Adds to a heartbeat of `rank` what the worker knows at the moment.
    std::function<void(uint32_t rank, v1::HeartbeatRequest*)> add_figures;
    // Called once, when the coordinator rejects this worker for good: it has
    // another build, or a rank outside the fleet. Also called if the server at
    // the address is no coordinator.
    std::function<void(const absl::Status&)> on_refused;
  };

  MembershipClient(const std::string& coordinator, v1::RegisterRequest request,
                   Hooks hooks);
  ~MembershipClient();  // Stops.

  // Sends the next heartbeat at once: the coordinator may have restarted. Any
  // thread may call it.
  void BeatNow();

 private:
  void Loop();
  // Registers once and renews until the coordinator no longer knows this
  // worker. Returns the reason.
  absl::Status Serve();
  void LogRetry(const absl::Status& status) const;
  // Returns false when the client stops, and early upon BeatNow.
  bool Sleep(absl::Duration duration);

  const std::string coordinator_;
  const v1::RegisterRequest request_;  // Without what begin_registration adds.
  const Hooks hooks_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Membership::Stub> stub_;

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool beats_now_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mu_) = nullptr;

  std::thread thread_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_SERVICE_MEMBERSHIP_CLIENT_H_
