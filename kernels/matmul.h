// SPDX-License-Identifier: Apache-2.0
// y = x W^T for every weight form. Row invariance: a result depends on its
// row of x and its row of W only, bit for bit, not on the number of rows, the
// threads or the part of W that is asked for. Each dot product is made in
// float32 in 16 partial sums (partial p takes elements 16 i + p) that one
// fixed tree adds up; multiply then add, never fused.
#ifndef RINGFLEET_KERNELS_MATMUL_H_
#define RINGFLEET_KERNELS_MATMUL_H_

#include <cstddef>

#include "kernels/thread_pool.h"
#include "kernels/weight_matrix.h"

namespace ringfleet::kernels {

// The sum of x[i] * w[i] in that order; the same bits as in MatMul.
float Dot(const float* x, const float* w, size_t size);

// y[i, o] = sum_k x[i, k] * w[first_row + o, k], o < num_rows
//   x [batch, w.columns()] f32, rows x_stride apart
//   y [batch, num_rows]    f32, rows y_stride apart; overlaps neither input
// Zero batch, rows or columns are allowed (an empty sum is 0).
struct MatMulArgs {
  const WeightMatrix* w = nullptr;
  size_t first_row = 0;
  size_t num_rows = 0;
  const float* x = nullptr;
  size_t batch = 0;
  size_t x_stride = 0;
  float* y = nullptr;
  size_t y_stride = 0;
};
void MatMul(const MatMulArgs& args, ThreadPool& pool);

// The same on the calling thread; for use inside a ParallelFor.
void MatMulOnThisThread(const MatMulArgs& args);

// Items of `multiply_adds` each that a chunk of a ParallelFor should hold for
// waking a thread to pay.
size_t ProductGrain(size_t multiply_adds);

// The whole of `w`, x and y dense.
void MatMul(const WeightMatrix& w, const float* x, size_t batch, float* y,
            ThreadPool& pool);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_MATMUL_H_
