// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_SERVICE_BOUNDED_QUEUE_H_
#define RINGFLEET_WORKER_SERVICE_BOUNDED_QUEUE_H_

#include <cstddef>
#include <deque>
#include <utility>

#include "kernels/mutex.h"

namespace ringfleet::worker {

// Plans that wait for their step, or results for the stream. One thread
// pushes, one pops. Bounded: a coordinator has at most two plans in flight, so
// a flood stops at the stream's flow control.
template <typename T>
class BoundedQueue {
 public:
  // Waits while the queue is full; false once it is closed or finished.
  bool Push(T item) {
    MutexLock lock(&mu_);
    while (!closed_ && items_.size() >= kCapacity) changed_.Wait(&mu_);
    if (closed_) return false;
    items_.push_back(std::move(item));
    changed_.NotifyAll();
    return true;
  }

  // Waits for an item; false once the queue is closed, and none is left.
  bool Pop(T* item) {
    MutexLock lock(&mu_);
    while (!closed_ && items_.empty()) changed_.Wait(&mu_);
    if (items_.empty()) return false;
    *item = std::move(items_.front());
    items_.pop_front();
    changed_.NotifyAll();
    return true;
  }

  // Refuses new items; those that wait still leave.
  void Finish() {
    MutexLock lock(&mu_);
    closed_ = true;
    changed_.NotifyAll();
  }

  // The same, but those that wait are dropped.
  void Close() {
    MutexLock lock(&mu_);
    closed_ = true;
    items_.clear();
    changed_.NotifyAll();
  }

 private:
  static constexpr size_t kCapacity = 8;

  Mutex mu_;
  CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<T> items_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_SERVICE_BOUNDED_QUEUE_H_
