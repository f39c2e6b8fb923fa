// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/matmul_in_out.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/f32x4.h"

namespace ringfleet::kernels {
namespace {

// Outputs whose sums stay in registers: 8 of SSE's 16.
constexpr size_t kLanes = 32;

// y[c] (+)= sum_k x[k] * b[k * stride + c] for c < kLanes.
void AddLanes(const float* x, size_t depth, const float* b, size_t stride,
              bool first, float* y) {
  F32x4 sums[kLanes / 4] = {};
  if (!first) {
    for (size_t v = 0; v < kLanes / 4; ++v) sums[v] = Load4(y + 4 * v);
  }
  for (size_t k = 0; k < depth; ++k) {
    for (size_t v = 0; v < kLanes / 4; ++v) {
      sums[v] += Load4(b + k * stride + 4 * v) * x[k];
    }
  }
  for (size_t v = 0; v < kLanes / 4; ++v) Store4(sums[v], y + 4 * v);
}

void AddOne(const float* x, size_t depth, const float* b, size_t stride,
            bool first, float* y) {
  float sum = first ? 0.0f : *y;
  for (size_t k = 0; k < depth; ++k) sum += b[k * stride] * x[k];
  *y = sum;
}

void AddRow(const MatMulInOutArgs& args, size_t row, size_t k, size_t depth,
            size_t begin, size_t end) {
  const float* const x = args.x->Values(row) + k;
  const float* const b = args.b + k * args.columns;
  float* const y = args.y + (row - args.first_y) * args.y_stride;
  size_t c = begin;
  for (; c + kLanes <= end; c += kLanes) {
    AddLanes(x, depth, b + c, args.columns, k == 0, y + c);
  }
  for (; c < end; ++c) {
    AddOne(x, depth, b + c, args.columns, k == 0, y + c);
  }
}

size_t TileColumns(const MatMulInOutArgs& args) {
  return args.tile_columns > 0 ? args.tile_columns : args.columns;
}

}  // namespace

size_t NumTiles(const MatMulInOutArgs& args) {
  if (args.columns == 0) return 0;
  return (args.columns + TileColumns(args) - 1) / TileColumns(args);
}

void MultiplyTile(const MatMulInOutArgs& args, size_t tile) {
  RF_CHECK(args.x->form() == Activations::Form::kF32 &&
           args.x->columns() == args.depth);
  for (const RowRange range : args.ranges) {
    RF_CHECK(range.begin >= args.first_y && range.end <= args.x->rows());
  }
  const size_t begin = tile * TileColumns(args);
  const size_t end = std::min(begin + TileColumns(args), args.columns);
  const size_t height =
      std::max<size_t>(args.tile_depth > 0 ? args.tile_depth : args.depth, 1);
  size_t k = 0;
  do {
    const size_t depth = std::min(height, args.depth - k);
    for (const RowRange range : args.ranges) {
      for (size_t row = range.begin; row < range.end; ++row) {
        AddRow(args, row, k, depth, begin, end);
      }
    }
    k += height;
  } while (k < args.depth);
}

}  // namespace ringfleet::kernels
