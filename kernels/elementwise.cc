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
  for (size_t i = 0; i < size; ++i) {
    gate[i] = gate[i] / (1.0f + ExpInline(-gate[i])) * up[i];
  }
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
