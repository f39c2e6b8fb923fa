// SPDX-License-Identifier: Apache-2.0
#include "kernels/rms_norm.h"

#include <cmath>

#include "kernels/matmul.h"

namespace ringfleet::kernels {

void RmsNorm(const float* x, size_t rows, size_t size, size_t x_stride,
             const float* gain, float eps, float* y, size_t y_stride) {
  for (size_t row = 0; row < rows; ++row) {
    const float* from = x + row * x_stride;
    float* to = y + row * y_stride;
    const float mean = Dot(from, from, size) / static_cast<float>(size);
    const float root = std::sqrt(mean + eps);
    for (size_t j = 0; j < size; ++j) to[j] = gain[j] * (from[j] / root);
  }
}

}  // namespace ringfleet::kernels
