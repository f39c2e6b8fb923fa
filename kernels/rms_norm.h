// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_RMS_NORM_H_
#define RINGFLEET_KERNELS_RMS_NORM_H_

#include <cstddef>

namespace ringfleet::kernels {

// y[j] = gain[j] * (x[j] / sqrt(mean_k(x[k]^2) + eps)), float32 (Zhang &
// Sennrich, arXiv:1910.07467). The sum of squares is made in the fixed order
// of matmul.h, so that hosts of different instruction sets route alike.
//   x, y [rows, size], rows x_stride and y_stride apart; y may be x.
void RmsNorm(const float* x, size_t rows, size_t size, size_t x_stride,
             const float* gain, float eps, float* y, size_t y_stride);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_RMS_NORM_H_
