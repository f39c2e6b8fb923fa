// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::kernels {
namespace {

constexpr size_t kColumns[] = {0,  1,  2,  3,   15,  16,  17,  31,
                               32, 33, 47, 128, 255, 512, 1000};

WeightMatrix RandomWeights(Dtype dtype, size_t rows, size_t columns,
                           uint32_t seed) {
  WeightMatrix w(dtype, rows, columns);
  const std::vector<float> values = RandomFloats(rows * columns, seed);
  for (size_t row = 0; row < rows; ++row) {
    w.Set(row, 0, values.data() + row * columns, columns);
  }
  return w;
}

// The order that matmul.h promises, one addition after the other.
float FixedOrderDot(const float* x, const float* w, size_t size) {
  float sums[16] = {};
  for (size_t i = 0; i < size; ++i) sums[i % 16] += x[i] * w[i];
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t p = 0; p < half; ++p) sums[p] += sums[p + half];
  }
  return sums[0];
}

TEST(WeightMatrixTest, KeepsRoundedRows) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    WeightMatrix w(dtype, 3, 7);
    EXPECT_EQ(w.bytes(), 21 * DtypeBytes(dtype));
    const std::vector<float> values = RandomFloats(7, 1);
    w.Set(1, 0, values.data(), 3);
    w.Set(1, 3, values.data() + 3, 4);
    std::vector<float> row(7, -1);
    w.GetRow(0, row.data());
    EXPECT_EQ(row, std::vector<float>(7, 0));
    w.GetRow(1, row.data());
    for (size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(row[i],
                dtype == Dtype::kF32 ? values[i] : RoundToBf16(values[i]));
    }
  }
}

TEST(WeightMatrixTest, MayBeEmpty) {
  EXPECT_EQ(WeightMatrix(Dtype::kBf16, 0, 5).bytes(), 0u);
  EXPECT_EQ(WeightMatrix::Create(Dtype::kBf16, 3, 5)->bytes(), 30u);
  WeightMatrix w(Dtype::kF32, 5, 0);
  w.Set(4, 0, nullptr, 0);
  w.GetRow(4, nullptr);
}

TEST(WeightMatrixTest, OneThatDoesNotFitIsAnErrorWithItsSize) {
  EXPECT_EQ(WeightMatrix::Create(Dtype::kBf16, size_t{1} << 30, size_t{1} << 29)
                .status(),
            absl::ResourceExhaustedError(
                "memory: the system refuses 1152921504606846976 bytes"));
  // Nor does a size that no number counts.
  EXPECT_EQ(WeightMatrix::Create(Dtype::kF32, size_t{1} << 40, size_t{1} << 40)
                .status()
                .code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(MatMulTest, DotAddsInThePromisedOrder) {
  for (const size_t size : kColumns) {
    const std::vector<float> x = RandomFloats(size, 1);
    const std::vector<float> w = RandomFloats(size, 2);
    EXPECT_EQ(Dot(x.data(), w.data(), size),
              FixedOrderDot(x.data(), w.data(), size))
        << size;
  }
}

// A product passes through its multiplication, at most ceil(n / 16) additions
// in its partial sum and 4 in the tree: |error| <= gamma(n / 16 + 6) |x| |w|.
TEST(MatMulTest, IsNearTheExactProduct) {
  ThreadPool pool(2);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (const size_t columns : kColumns) {
      const size_t rows = 5;
      const size_t batch = 4;
      const WeightMatrix w = RandomWeights(dtype, rows, columns, 3);
      const std::vector<float> x = RandomFloats(batch * columns, 4);
      std::vector<float> y(batch * rows, NAN);
      MatMul(w, x.data(), batch, y.data(), pool);
      std::vector<float> row(columns);
      for (size_t o = 0; o < rows; ++o) {
        w.GetRow(o, row.data());
        for (size_t i = 0; i < batch; ++i) {
          double exact = 0;
          double magnitude = 0;
          for (size_t k = 0; k < columns; ++k) {
            const double product =
                static_cast<double>(x[i * columns + k]) * row[k];
            exact += product;
            magnitude += std::abs(product);
          }
          EXPECT_NEAR(y[i * rows + o], exact,
                      Gamma(columns / 16.0 + 6) * magnitude)
              << DtypeName(dtype) << " columns " << columns;
          EXPECT_EQ(y[i * rows + o],
                    Dot(x.data() + i * columns, row.data(), columns));
        }
      }
    }
  }
}

// Large enough for many chunks per thread and, with 64 rows of 3000 columns,
// for several blocks of x.
TEST(MatMulTest, ResultsDependOnTheirOwnRowsOnly) {
  const size_t rows = 301;
  const size_t columns = 3001;
  const size_t batch = 64;
  const std::vector<float> x = RandomFloats(batch * columns, 5);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    const WeightMatrix w = RandomWeights(dtype, rows, columns, 6);
    ThreadPool one(1);
    std::vector<float> expected(batch * rows);
    for (size_t i = 0; i < batch; ++i) {
      MatMul(w, &x[i * columns], 1, &expected[i * rows], one);
    }
    for (int threads = 1; threads <= 4; ++threads) {
      ThreadPool pool(threads);
      for (const size_t part : {size_t{1}, size_t{7}, batch}) {
        std::vector<float> y(part * rows, NAN);
        MatMul(w, &x[(batch - part) * columns], part, y.data(), pool);
        for (size_t i = 0; i < part * rows; ++i) {
          ASSERT_EQ(y[i], expected[(batch - part) * rows + i]);
        }
      }
    }
  }
}

TEST(MatMulTest, SubRangesAndStridesTouchOnlyTheirPart) {
  const size_t columns = 37;
  const WeightMatrix w = RandomWeights(Dtype::kBf16, 20, columns, 7);
  ThreadPool pool(3);
  const size_t batch = 5;
  const size_t x_stride = columns + 3;
  const size_t y_stride = 11;
  const std::vector<float> x = RandomFloats(batch * x_stride, 8);
  for (const bool on_this_thread : {false, true}) {
    std::vector<float> y(batch * y_stride, 42);
    const MatMulArgs args = {.w = &w,
                             .first_row = 13,
                             .num_rows = 7,
                             .x = x.data(),
                             .batch = batch,
                             .x_stride = x_stride,
                             .y = y.data(),
                             .y_stride = y_stride};
    if (on_this_thread) {
      MatMulOnThisThread(args);
    } else {
      MatMul(args, pool);
    }
    std::vector<float> row(columns);
    for (size_t i = 0; i < batch; ++i) {
      for (size_t o = 0; o < y_stride; ++o) {
        float expected = 42;
        if (o < 7) {
          w.GetRow(13 + o, row.data());
          expected = Dot(&x[i * x_stride], row.data(), columns);
        }
        EXPECT_EQ(y[i * y_stride + o], expected);
      }
    }
  }
}

TEST(MatMulTest, ZeroSizesAreAllowed) {
  ThreadPool pool(2);
  const WeightMatrix no_columns(Dtype::kBf16, 3, 0);
  std::vector<float> y(6, 1);
  MatMul(no_columns, nullptr, 2, y.data(), pool);
  EXPECT_EQ(y, std::vector<float>(6, 0));
  const WeightMatrix no_rows(Dtype::kF32, 0, 3);
  const std::vector<float> x(6, 1);
  MatMul(no_rows, x.data(), 2, nullptr, pool);
  const WeightMatrix w(Dtype::kF32, 2, 3);
  MatMul(w, nullptr, 0, nullptr, pool);
}

}  // namespace
}  // namespace ringfleet::kernels
