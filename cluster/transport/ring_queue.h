// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_TRANSPORT_RING_QUEUE_H_
#define RINGFLEET_CLUSTER_TRANSPORT_RING_QUEUE_H_

#include <cstddef>
#include <utility>
#include <vector>

namespace ringfleet::cluster {

// First in, first out, in memory that grows to the longest queue there was and
// is then used again: std::deque allocates as it moves along. Popped elements
// are left moved-from. Not thread-safe.
template <typename T>
class RingQueue {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  T& front() { return slots_[head_]; }

  void push_back(T value) {
    if (size_ == slots_.size()) Grow();
    slots_[(head_ + size_) % slots_.size()] = std::move(value);
    ++size_;
  }

  T pop_front() {
    T value = std::move(slots_[head_]);
    head_ = (head_ + 1) % slots_.size();
    --size_;
    return value;
  }

  void clear() {
    while (!empty()) pop_front();
  }

 private:
  void Grow() {
    std::vector<T> larger(slots_.empty() ? 8 : 2 * slots_.size());
    for (size_t i = 0; i < size_; ++i) {
      larger[i] = std::move(slots_[(head_ + i) % slots_.size()]);
    }
    slots_ = std::move(larger);
    head_ = 0;
  }

  std::vector<T> slots_;
  size_t head_ = 0;
  size_t size_ = 0;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_RING_QUEUE_H_
