// SPDX-License-Identifier: Apache-2.0
// Asks for memory ahead of the stores that go there.
#ifndef RINGFLEET_KERNELS_PREFETCH_H_
#define RINGFLEET_KERNELS_PREFETCH_H_

#include <cstddef>

namespace ringfleet::kernels {

// Begins to bring the lines of `size` floats from `values` on into the cache.
// For pieces of rows that lie far apart, where no processor foresees the next
// one and each store would wait for its own lines. Any address will do.
inline void Prefetch(const float* values, size_t size) {
  constexpr size_t kLineFloats = 64 / sizeof(float);
  for (size_t i = 0; i < size; i += kLineFloats) {
    __builtin_prefetch(values + i);
  }
}

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PREFETCH_H_
