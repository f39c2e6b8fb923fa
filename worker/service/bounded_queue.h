// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_SERVICE_BOUNDED_QUEUE_H_
#define RINGFLEET_WORKER_SERVICE_BOUNDED_QUEUE_H_

#include <cstddef>
#include <deque>
#include <utility>

#include "kernels/mutex.h"

namespace ringfleet::worker {

// A queue of plans that wait for their step, or of results that wait for the
// stream. Thread-safe. A coordinator has at most two plans in flight, so only a
// faulty one fills the queue; the flow control of the stream then stops it.
template <typename T>
class BoundedQueue {
 public:
  // Waits while the queue is full. Returns false once it is closed or finished.
  bool Push(T item) {
    MutexLock lock(&mu_);
    while (!closed_ && items_.size() >= kCapacity) changed_.Wait(&mu_);
    if (closed_) return false;
    items_.push_back(std::move(item));
    changed_.NotifyAll();
    return true;
  }

  // Waits for an item. Returns false once the queue is closed or finished and
  // empty.
  bool Pop(T* item) {
    MutexLock lock(&mu_);
    while (!closed_ && items_.empty()) changed_.Wait(&mu_);
    if (items_.empty()) return false;
    *item = std::move(items_.front());
    items_.pop_front();
    changed_.NotifyAll();
    return true;
  }

  // Refuses new items. Items in the queue can still be popped.
  void Finish() {
    MutexLock lock(&mu_);
    closed_ = true;
    changed_.NotifyAll();
  }

  // Refuses new items and drops the items in the queue.
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
