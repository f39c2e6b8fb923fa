// SPDX-License-Identifier: Apache-2.0
// y = x B for float32 weights that lie as [in, out], the transpose of what a
// WeightMatrix has.
#ifndef RINGFLEET_KERNELS_PRODUCTS_MATMUL_IN_OUT_H_
#define RINGFLEET_KERNELS_PRODUCTS_MATMUL_IN_OUT_H_

#include <cstddef>

#include "absl/types/span.h"
#include "kernels/products/activations.h"
#include "kernels/products/row_range.h"

namespace ringfleet::kernels {

// y[i - first_y, o] = sum_k x[i, k] * b[k, o] for rows i of `ranges`, o <
// columns: added in float32 in ascending order of k, multiply then add, so that
// a result has the same bits for any ranges and tiles.
//   x of form kF32, [.., depth]    b [depth, columns] f32, row-major
//   y f32, rows y_stride apart; overlaps neither input
// `tile_columns` outputs are a tile; `tile_depth` inputs of it go through all
// rows before the next ones, so that they come from the cache; 0: all. Partial
// sums wait in y.
struct MatMulInOutArgs {
  const float* b = nullptr;
  size_t depth = 0;
  size_t columns = 0;
  const Activations* x = nullptr;
  absl::Span<const RowRange> ranges;
  float* y = nullptr;
  size_t y_stride = 0;
  size_t first_y = 0;
  size_t tile_columns = 0;
  size_t tile_depth = 0;
};

// How many tiles the product has, and the outputs of one of them, by the
// calling thread. Rows may differ from tile to tile.
size_t NumTiles(const MatMulInOutArgs& args);
void MultiplyTile(const MatMulInOutArgs& args, size_t tile);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_MATMUL_IN_OUT_H_
