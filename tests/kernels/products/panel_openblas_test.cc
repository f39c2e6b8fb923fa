// SPDX-License-Identifier: Apache-2.0
#include <cblas.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/products/matmul.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::kernels {
namespace {

WeightMatrix RandomMatrix(WeightForm form, size_t rows, size_t columns) {
  const std::vector<float> values = RandomFloats(rows * columns, 3);
  WeightMatrix w(form, rows, columns);
  for (size_t row = 0; row < rows; ++row) {
    w.SetRow(row, values.data() + row * columns);
  }
  return w;
}

// Every build has one SONAME; the one with threads would start them.
TEST(OpenBlasTest, IsTheSerialBuild) { EXPECT_EQ(openblas_get_parallel(), 0); }

// Just too large for the loops that need no scratch memory.
TEST(OpenBlasTest, ThreadsHaveScratchMemoryOfTheirOwn) {
  constexpr int kSize = 101, kProducts = 8000;
  ThreadPool pool(4);
  std::atomic<int> wrong = 0;
  pool.ParallelFor(4, 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const std::vector<float> a(kSize * kSize, static_cast<float>(i + 1));
      const std::vector<float> b(kSize * kSize, 1);
      const std::vector<float> product(kSize * kSize,
                                       static_cast<float>((i + 1) * kSize));
      std::vector<float> c(kSize * kSize);
      for (int repeat = 0; repeat < kProducts; ++repeat) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, kSize, kSize,
                    kSize, 1, a.data(), kSize, b.data(), kSize, 0, c.data(),
                    kSize);
        wrong += c != product;
      }
    }
  });
  EXPECT_EQ(wrong, 0);
}

// Two terms are multiplied and up to `columns` added, in any order: |error| <=
// gamma(columns + 1) |x| |w|.
TEST(ReferenceProductTest, IsNearTheExactProduct) {
  ThreadPool pool(2);
  const size_t rows = 69, batch = 53;
  for (const size_t columns : {1, 2, 17, 64, 129, 256, 1000}) {
    const WeightMatrix w = RandomMatrix(WeightForm::kReference, rows, columns);
    const std::vector<float> x = RandomFloats(batch * columns, 4);
    Activations activations;
    activations.Assign(Activations::Form::kF32, x.data(), batch, columns,
                       columns, pool);
    std::vector<float> y(batch * rows, NAN);
    MatMul(w, activations, y.data(), pool);
    std::vector<float> row(columns);
    for (size_t o = 0; o < rows; ++o) {
      w.GetRow(o, row.data());
      for (size_t i = 0; i < batch; ++i) {
        double exact = 0;
        double magnitude = 0;
        for (size_t k = 0; k < columns; ++k) {
          const double term = double{x[i * columns + k]} * row[k];
          exact += term;
          magnitude += std::abs(term);
        }
        ASSERT_NEAR(y[i * rows + o], exact,
                    Gamma(static_cast<double>(columns + 1)) * magnitude)
            << columns << " columns";
      }
    }
  }
}

// Around the sizes at which OpenBLAS changes its loops, and where products of
// few rows were seen to round differently.
TEST(ReferenceProductTest, ARowHasItsBitsWhereverItStands) {
  ThreadPool pool(2);
  for (const size_t columns : {40, 256, 384, 1536, 7168}) {
    for (const size_t outputs : {64, 83}) {
      const WeightMatrix w =
          RandomMatrix(WeightForm::kReference, outputs, columns);
      const std::vector<float> row = RandomFloats(columns, 5);
      std::vector<float> expected(outputs);
      for (const size_t rows : {1, 2, 5, 15, 16, 17, 48, 100}) {
        std::vector<float> x = RandomFloats(rows * columns, 6);
        for (const size_t place : {size_t{0}, rows / 3, rows - 1}) {
          std::copy(row.begin(), row.end(), x.begin() + place * columns);
        }
        Activations activations;
        activations.Assign(Activations::Form::kF32, x.data(), rows, columns,
                           columns, pool);
        std::vector<float> y(rows * outputs);
        MatMul(w, activations, y.data(), pool);
        if (rows == 1) expected = y;
        for (const size_t place : {size_t{0}, rows / 3, rows - 1}) {
          const auto first =
              y.begin() + static_cast<ptrdiff_t>(place * outputs);
          ASSERT_TRUE(std::equal(expected.begin(), expected.end(), first))
              << columns << " columns, row " << place << " of " << rows;
        }
      }
    }
  }
}

// The panels of floats at sizes that plain loops would take seconds for. Both
// are within gamma of the exact product, our own with the fewer additions.
TEST(ReferenceProductTest, PanelsOfFloatsAgreeWithItAtLargeSizes) {
  ThreadPool pool(2);
  const size_t columns = 7168, outputs = 576, batch = 100;
  const std::vector<float> x = RandomFloats(batch * columns, 7);
  Activations activations;
  activations.Assign(Activations::Form::kF32, x.data(), batch, columns, columns,
                     pool);
  for (const WeightForm form : {WeightForm::kF32, WeightForm::kBf16}) {
    const WeightMatrix w = RandomMatrix(form, outputs, columns);
    WeightMatrix reference(WeightForm::kReference, outputs, columns);
    WeightMatrix magnitudes(WeightForm::kReference, outputs, columns);
    std::vector<float> row(columns);
    for (size_t o = 0; o < outputs; ++o) {
      w.GetRow(o, row.data());
      reference.SetRow(o, row.data());
      for (float& value : row) value = std::abs(value);
      magnitudes.SetRow(o, row.data());
    }
    std::vector<float> x_magnitudes = x;
    for (float& value : x_magnitudes) value = std::abs(value);
    Activations activation_magnitudes;
    activation_magnitudes.Assign(Activations::Form::kF32, x_magnitudes.data(),
                                 batch, columns, columns, pool);
    std::vector<float> y(batch * outputs), expected(y.size()), bound(y.size());
    MatMul(w, activations, y.data(), pool);
    MatMul(reference, activations, expected.data(), pool);
    MatMul(magnitudes, activation_magnitudes, bound.data(), pool);
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_NEAR(y[i], expected[i], Gamma(2.0 * columns) * bound[i])
          << WeightFormName(form) << ", result " << i;
    }
  }
}

}  // namespace
}  // namespace ringfleet::kernels
