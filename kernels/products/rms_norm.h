// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_PRODUCTS_RMS_NORM_H_
#define RINGFLEET_KERNELS_PRODUCTS_RMS_NORM_H_

#include <cstddef>

#include "kernels/products/activations.h"
#include "kernels/thread_pool.h"

namespace ringfleet::kernels {

// y[j] = gain[j] * (x[j] / sqrt(mean_k(x[k]^2) + eps)), float32 (Zhang &
// Sennrich, arXiv:1910.07467). The sum of squares has the fixed order of
// matmul.h, and every operation rounds on its own. All instruction sets
// therefore give the same bits, and hosts of different kinds route alike.
//   x, y [rows, size], rows x_stride and y_stride apart; y may be x.
void RmsNorm(const float* x, size_t rows, size_t size, size_t x_stride,
             const float* gain, float eps, float* y, size_t y_stride,
             ThreadPool& pool);

// Norms dense rows, and sets `normed` to y in the form that products read. A
// row is quantised while the cache still has it. `normed` keeps a pointer to y
// if the form is kF32.
void RmsNorm(const float* x, size_t rows, size_t size, const float* gain,
             float eps, float* y, Activations::Form form, Activations* normed,
             ThreadPool& pool);

// x += summand, then RmsNorm of x, in one pass.
//   x, summand, y [rows, size], dense; x may overlap neither other.
void AddRmsNorm(const float* summand, size_t rows, size_t size,
                const float* gain, float eps, float* x, float* y,
                Activations::Form form, Activations* normed, ThreadPool& pool);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_RMS_NORM_H_
