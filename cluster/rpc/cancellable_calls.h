// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_RPC_CANCELLABLE_CALLS_H_
#define RINGFLEET_CLUSTER_RPC_CANCELLABLE_CALLS_H_

#include <grpcpp/client_context.h>

#include <algorithm>
#include <vector>

#include "absl/time/time.h"
#include "cluster/process/deadline.h"
#include "kernels/mutex.h"

namespace ringfleet::cluster {

// Calls to other processes that another thread may end, once and for all.
// Cancel() ends the running calls, and each later call as soon as it begins.
// Thread-safe.
class CancellableCalls {
 public:
  // Registers a call while in scope.
  class Scope {
   public:
    Scope(CancellableCalls* calls, grpc::ClientContext* context)
        : calls_(calls), context_(context) {
      MutexLock lock(&calls_->mu_);
      calls_->active_.push_back(context_);
      if (calls_->cancelled_) context_->TryCancel();
    }
    ~Scope() {
      MutexLock lock(&calls_->mu_);
      auto& active = calls_->active_;
      active.erase(std::find(active.begin(), active.end(), context_));
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    CancellableCalls* const calls_;
    grpc::ClientContext* const context_;
  };

  void Cancel() {
    MutexLock lock(&mu_);
    cancelled_ = true;
    for (grpc::ClientContext* context : active_) context->TryCancel();
    changed_.NotifyAll();
  }

  bool cancelled() {
    MutexLock lock(&mu_);
    return cancelled_;
  }

  // Waits between two attempts of a call. Returns at once after Cancel().
  void Pause(absl::Duration duration) {
    const Deadline end = Deadline::After(duration);
    MutexLock lock(&mu_);
    while (!cancelled_ && changed_.WaitUntil(&mu_, end.when())) {
    }
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<grpc::ClientContext*> active_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RPC_CANCELLABLE_CALLS_H_
