// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.h"

#include "kernels/dtype.h"
#include "kernels/exp-inl.h"

namespace ringfleet::kernels {

void AddTo(const float* x, size_t size, float* y) {
  for (size_t i = 0; i < size; ++i) y[i] += x[i];
}

void AddScaledTo(float scale, const float* x, size_t size, float* y) {
  for (size_t i = 0; i < size; ++i) y[i] += scale * x[i];
}

void SiluMultiply(float* gate, const float* up, size_t size) {
  size_t i = 0;
  for (; i + 4 <= size; i += 4) {
    const F32x4 z = Load4(gate + i);
    Store4(z / (1.0f + Exp(-z)) * Load4(up + i), gate + i);
  }
  for (; i < size; ++i) gate[i] = gate[i] / (1.0f + Exp(-gate[i])) * up[i];
}

void FloatToBf16(const float* source, size_t size,
                 uint16_t* __restrict destination) {
  for (size_t i = 0; i < size; ++i) destination[i] = FloatToBf16(source[i]);
}

void Bf16ToFloat(const uint16_t* source, size_t size,
                 float* __restrict destination) {
  for (size_t i = 0; i < size; ++i) destination[i] = Bf16ToFloat(source[i]);
}

}  // namespace ringfleet::kernels
