// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul.h"

#include <algorithm>
#include <cstdint>

#include "kernels/check.h"
#include "kernels/dot-inl.h"

namespace ringfleet::kernels {
namespace {

// Bytes of x that stay in a core's L2 (256 KB and more on hosts of the last
// decade) while every weight row of a chunk passes over them.
constexpr size_t kRowBlockBytes = 192 * 1024;

// Multiply-adds that one thread does in about the time that waking the pool
// takes (10 us): smaller products, and smaller chunks, don't pay.
constexpr size_t kMinChunkMultiplyAdds = size_t{1} << 16;

// y[., o] for all rows of one block of x.
template <typename Element>
void MultiplyRow(const Element* w, const float* x, size_t batch,
                 size_t x_stride, size_t columns, float* y, size_t y_stride) {
  size_t i = 0;
  for (; i + kDotRows <= batch; i += kDotRows) {
    const float* rows[kDotRows];
    float out[kDotRows];
    for (size_t n = 0; n < kDotRows; ++n) rows[n] = x + (i + n) * x_stride;
    DotRows<kDotRows>(w, rows, columns, out);
    for (size_t n = 0; n < kDotRows; ++n) y[(i + n) * y_stride] = out[n];
  }
  for (; i < batch; ++i) {
    const float* row = x + i * x_stride;
    DotRows<1>(w, &row, columns, &y[i * y_stride]);
  }
}

// Blocks of x outside, weight rows inside: a weight row is read from memory
// once per block and serves all of its rows.
template <typename Element>
void MultiplyRows(const MatMulArgs& args, size_t begin, size_t end) {
  const size_t columns = args.w->columns();
  const size_t fitting =
      kRowBlockBytes / (std::max<size_t>(columns, 1) * sizeof(float));
  const size_t block = std::max(fitting / kDotRows * kDotRows, kDotRows);
  for (size_t i = 0; i < args.batch; i += block) {
    const size_t rows = std::min(block, args.batch - i);
    for (size_t o = begin; o < end; ++o) {
      const auto* w =
          static_cast<const Element*>(args.w->Row(args.first_row + o));
      MultiplyRow(w, args.x + i * args.x_stride, rows, args.x_stride, columns,
                  args.y + i * args.y_stride + o, args.y_stride);
    }
  }
}

void Multiply(const MatMulArgs& args, size_t begin, size_t end) {
  if (args.w->dtype() == Dtype::kBf16) {
    MultiplyRows<uint16_t>(args, begin, end);
  } else {
    MultiplyRows<float>(args, begin, end);
  }
}

void CheckRange(const MatMulArgs& args) {
  RF_CHECK(args.first_row <= args.w->rows());
  RF_CHECK(args.num_rows <= args.w->rows() - args.first_row);
}

}  // namespace

float Dot(const float* x, const float* w, size_t size) {
  float sum;
  DotRows<1>(w, &x, size, &sum);
  return sum;
}

size_t ProductGrain(size_t multiply_adds) {
  return 1 + kMinChunkMultiplyAdds / std::max<size_t>(multiply_adds, 1);
}

void MatMul(const MatMulArgs& args, ThreadPool& pool) {
  CheckRange(args);
  const size_t grain = ProductGrain(args.w->columns() * args.batch);
  pool.ParallelFor(args.num_rows, grain, [&args](size_t begin, size_t end) {
    Multiply(args, begin, end);
  });
}

void MatMulOnThisThread(const MatMulArgs& args) {
  CheckRange(args);
  Multiply(args, 0, args.num_rows);
}

void MatMul(const WeightMatrix& w, const float* x, size_t batch, float* y,
            ThreadPool& pool) {
  MatMul({.w = &w,
          .num_rows = w.rows(),
          .x = x,
          .batch = batch,
          .x_stride = w.columns(),
          .y = y,
          .y_stride = w.rows()},
         pool);
}

}  // namespace ringfleet::kernels
