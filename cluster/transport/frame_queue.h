// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_TRANSPORT_FRAME_QUEUE_H_
#define RINGFLEET_CLUSTER_TRANSPORT_FRAME_QUEUE_H_

#include <cstddef>
#include <utility>
#include <vector>

namespace ringfleet::cluster {

// A first-in first-out queue in a circular buffer. The buffer grows to the
// longest queue and is reused. A std::deque allocates again and again, even if
// its length stays constant. Popped elements stay in the buffer, moved-from.
// Not thread-safe.
template <typename T>
class FrameQueue {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  T& front() { return items_[head_]; }

  void push_back(T value) {
    if (size_ == items_.size()) Grow();
    items_[(head_ + size_) % items_.size()] = std::move(value);
    ++size_;
  }

  T pop_front() {
    T value = std::move(items_[head_]);
    head_ = (head_ + 1) % items_.size();
    --size_;
    return value;
  }

  void clear() {
    while (!empty()) pop_front();
  }

 private:
  void Grow() {
    std::vector<T> larger(items_.empty() ? 8 : 2 * items_.size());
    for (size_t i = 0; i < size_; ++i) {
      larger[i] = std::move(items_[(head_ + i) % items_.size()]);
    }
    items_ = std::move(larger);
    head_ = 0;
  }

  std::vector<T> items_;
  size_t head_ = 0;
  size_t size_ = 0;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_FRAME_QUEUE_H_
