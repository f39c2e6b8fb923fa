// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_RPC_ACTIVE_CALLS_H_
#define RINGFLEET_CLUSTER_RPC_ACTIVE_CALLS_H_

#include "cluster/process/deadline.h"
#include "kernels/mutex.h"

namespace ringfleet::cluster {

// Counts the calls that a service serves, so that a server can wait for them
// before it is shut down. (grpc::Server::Shutdown also waits for idle
// connections, which their clients may leave alone for long.) Thread-safe.
class ActiveCalls {
 public:
  // Counts one call while in scope.
  class Scope {
   public:
    explicit Scope(ActiveCalls* calls) : calls_(calls) {
      MutexLock lock(&calls_->mu_);
      ++calls_->count_;
    }
    ~Scope() {
      MutexLock lock(&calls_->mu_);
      if (--calls_->count_ == 0) calls_->none_.NotifyAll();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    ActiveCalls* const calls_;
  };

  // Returns when no call is served, or at the deadline.
  void WaitNone(Deadline deadline) {
    MutexLock lock(&mu_);
    while (count_ > 0 && none_.WaitUntil(&mu_, deadline.when())) {
    }
  }

 private:
  Mutex mu_;
  CondVar none_;
  int count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RPC_ACTIVE_CALLS_H_
