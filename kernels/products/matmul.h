// SPDX-License-Identifier: Apache-2.0
// y = x W^T for every weight form.
//
// Row invariance: a result depends on its row of x and its row of W only, bit
// for bit, not on the number of rows, the threads or the requested part of W.
// panel.h has the order of additions. kF32Rows, the router's form, has an order
// of its own. Each dot product has 16 partial sums, which one fixed tree adds
// up. Partial sum p takes elements 16 i + p; products and sums round one after
// the other, never fused.
#ifndef RINGFLEET_KERNELS_PRODUCTS_MATMUL_H_
#define RINGFLEET_KERNELS_PRODUCTS_MATMUL_H_

#include <cstddef>

#include "absl/types/span.h"
#include "kernels/products/activations.h"
#include "kernels/products/row_range.h"
#include "kernels/products/weight_matrix.h"
#include "kernels/thread_pool.h"

namespace ringfleet::kernels {

// y[i, o] = sum_k x[first_x + i * x_step, k] * w[first_row + o, k],
// i < batch, o < num_rows
//   x of ActivationFormFor(w->form()) and of w->columns() columns
//   y [batch, num_rows] f32, rows y_stride apart; overlaps neither input
// Zero batch, rows or columns are allowed (an empty sum is 0).
struct MatMulArgs {
  const WeightMatrix* w = nullptr;
  size_t first_row = 0;
  size_t num_rows = 0;
  const Activations* x = nullptr;
  size_t first_x = 0;
  size_t x_step = 1;
  size_t batch = 0;
  float* y = nullptr;
  size_t y_stride = 0;
};

// Computes all of `products` in one loop over the threads, in their order.
void MatMul(absl::Span<const MatMulArgs> products, ThreadPool& pool);

// Multiplies the whole of w and of x; y is dense.
void MatMul(const WeightMatrix& w, const Activations& x, float* y,
            ThreadPool& pool);

// y[i - first_y, o] = sum_k x[i, k] * w[o, k] for o < w->rows() and the rows i
// of `ranges`. x as in MatMulArgs; rows of y are y_stride apart, and other rows
// keep their values. A tile has `tile_columns` outputs, whole panels of them;
// its weights are read once for all ranges.
struct MatMulRangesArgs {
  const WeightMatrix* w = nullptr;
  const Activations* x = nullptr;
  absl::Span<const RowRange> ranges;
  float* y = nullptr;
  size_t y_stride = 0;
  size_t first_y = 0;
  size_t tile_columns = 0;  // 0: one panel.
};

size_t NumTiles(const MatMulRangesArgs& args);
// Computes the outputs of one tile on the calling thread. `ranges` may differ
// from tile to tile.
void MultiplyTile(const MatMulRangesArgs& args, size_t tile);

// One product for each of `heads` heads: head h's is `first`, moved by h times
// the steps. The products share the threads.
struct PerHeadArgs {
  MatMulArgs first;
  size_t heads = 0;
  size_t row_step = 0;  // Rows of w.
  size_t x_step = 0;    // Rows of x.
  size_t y_step = 0;    // Elements.
};
void MatMulPerHead(const PerHeadArgs& args, ThreadPool& pool);

// The number of rows of x that a product should have, with the instructions in
// use.
struct ProductRows {
  // Rows that go together. Fewer rows take as long (AMX's tiles).
  size_t together = 1;
  // Rows whose multiplication takes about as long as the reading of their
  // weights. A product cut into parts of so many rows loses little. int8: a
  // core of Zen 3 multiplies 4 rows as fast as 128, at 127 GOPS, and reads 16
  // GB/s. A core of Zen 4 with VNNI meets both bounds at 10 rows (400 GOPS, 20
  // GB/s), one with AMX at 24 (760, 16).
  size_t enough = 8;
};
ProductRows BestProductRows(Activations::Form form);

// Returns the grain for a ParallelFor over items of `multiply_adds` each, so
// large that waking a thread pays.
size_t ProductGrain(size_t multiply_adds);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_MATMUL_H_
