// SPDX-License-Identifier: Apache-2.0
// Asks for memory ahead of the stores that go there.
#ifndef RINGFLEET_KERNELS_PREFETCH_H_
#define RINGFLEET_KERNELS_PREFETCH_H_

#include <cstddef>

namespace ringfleet::kernels {

// Begins to bring the lines of values[0 .. size) into the cache, to be written.
// For pieces of rows that lie far apart, where no processor foresees the next
// one and each store would wait for its own lines.
inline void Prefetch(const float* values, size_t size) {
  constexpr size_t kLineFloats = 64 / sizeof(float);
  for (size_t i = 0; i < size; i += kLineFloats) {
    __builtin_prefetch(values + i, /*rw=*/1);
  }
  if (size > 0) __builtin_prefetch(values + size - 1, /*rw=*/1);
}

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PREFETCH_H_
