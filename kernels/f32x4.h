// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_F32X4_H_
#define RINGFLEET_KERNELS_F32X4_H_

#include <cstring>

namespace ringfleet::kernels {

// Four float32 lanes, GCC's and Clang's vector type: one SSE register.
using F32x4 = float __attribute__((vector_size(16)));

// No alignment is required.
inline F32x4 Load4(const float* source) {
  F32x4 value;
  std::memcpy(&value, source, sizeof(value));
  return value;
}

inline void Store4(F32x4 value, float* destination) {
  std::memcpy(destination, &value, sizeof(value));
}

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_F32X4_H_
