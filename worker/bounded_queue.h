// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_PLAN_QUEUE_H_
#define RINGFLEET_WORKER_PLAN_QUEUE_H_

#include <deque>
#include <utility>

#include "kernels/mutex.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// Plans that have arrived and wait for their step. One thread pushes, one
// pops. Bounded: a coordinator has at most two plans in flight, so a flood
// stops at the stream's flow control.
class PlanQueue {
 public:
  // Waits while the queue is full; false once it is closed.
  bool Push(v1::StepPlan plan) {
    MutexLock lock(&mu_);
    while (!closed_ && plans_.size() >= kCapacity) changed_.Wait(&mu_);
    if (closed_) return false;
    plans_.push_back(std::move(plan));
    changed_.NotifyAll();
    return true;
  }

  // Waits for a plan; false once the queue is closed.
  bool Pop(v1::StepPlan* plan) {
    MutexLock lock(&mu_);
    while (!closed_ && plans_.empty()) changed_.Wait(&mu_);
    if (closed_) return false;
    *plan = std::move(plans_.front());
    plans_.pop_front();
    changed_.NotifyAll();
    return true;
  }

  // Wakes both sides; plans that still wait are dropped.
  void Close() {
    MutexLock lock(&mu_);
    closed_ = true;
    changed_.NotifyAll();
  }

 private:
  static constexpr size_t kCapacity = 8;

  Mutex mu_;
  CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<v1::StepPlan> plans_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_PLAN_QUEUE_H_
