// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_SERVICE_COORDINATOR_FENCE_H_
#define RINGFLEET_WORKER_SERVICE_COORDINATOR_FENCE_H_

#include <grpcpp/server_context.h>

#include <string>

#include "absl/status/status.h"
#include "kernels/mutex.h"

namespace ringfleet::worker {

// Tells the calls of the coordinator that a worker registered with last from
// those of earlier coordinators, by the ids of cluster/rpc/coordinator_id.h. A
// call without an id, and any call before the first registration, is nobody's
// and passes. Thread-safe.
class CoordinatorFence {
 public:
  // A registration is under way. Its coordinator may call before the worker has
  // the answer.
  void BeginRegistration();
  // `id` is that of the coordinator that has answered; empty: none has.
  void EndRegistration(const std::string& id);

  // Returns SupersededError for a call of an earlier coordinator. Waits until
  // a registration that is under way ends, at most 10 s, because it may be one
  // with the caller.
  absl::Status Check(const grpc::ServerContext& context);
  // Returns what Check does, without waiting.
  absl::Status CheckNow(const grpc::ServerContext& context);

 private:
  absl::Status Judge(const std::string& caller) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  CondVar changed_;
  bool registering_ ABSL_GUARDED_BY(mu_) = false;
  std::string id_ ABSL_GUARDED_BY(mu_);  // Empty: not registered so far.
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_SERVICE_COORDINATOR_FENCE_H_
