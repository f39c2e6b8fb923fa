// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_FUSED_GROW_H_
#define RINGFLEET_WORKER_FUSED_GROW_H_

#include <cstddef>
#include <vector>

namespace ringfleet::worker {

// Returns the memory of `buffer`, which has grown to `size` elements if it had
// fewer. Buffers never shrink, so a step that is no larger than an earlier one
// allocates nothing.
template <typename T>
T* Grow(std::vector<T>& buffer, size_t size) {
  if (buffer.size() < size) buffer.resize(size);
  return buffer.data();
}

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_FUSED_GROW_H_
