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
  using AddFigures =
      std::function<void(uint32_t rank, v1::HeartbeatRequest* heartbeat)>;

  // `last_epoch` returns the epoch that each registration and heartbeat
  // reports. `add_figures` adds the figures of a heartbeat of `rank`; null:
  // none are reported. `on_refused` is called once, when the coordinator
  // rejects this worker for good: it has another build, or a rank outside the
  // fleet. Also called if the server at the address is no coordinator. All run
  // on the client's thread.
  MembershipClient(const std::string& coordinator, v1::RegisterRequest request,
                   std::function<uint64_t()> last_epoch, AddFigures add_figures,
                   std::function<void(const absl::Status&)> on_refused);
  ~MembershipClient();  // Stops.

 private:
  void Loop();
  // Registers once and renews until the coordinator no longer knows this
  // worker. Returns the reason.
  absl::Status Serve();
  void LogRetry(const absl::Status& status) const;
  // Returns false when the client stops.
  bool Sleep(absl::Duration duration);

  const std::string coordinator_;
  const v1::RegisterRequest request_;  // Without the last epoch.
  const std::function<uint64_t()> last_epoch_;
  const AddFigures add_figures_;
  const std::function<void(const absl::Status&)> on_refused_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Membership::Stub> stub_;

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mu_) = nullptr;

  std::thread thread_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_SERVICE_MEMBERSHIP_CLIENT_H_
