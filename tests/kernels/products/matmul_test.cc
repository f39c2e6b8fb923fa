// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/matmul.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "kernels/products/panel.h"
#include "tests/kernels/each_isa.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::kernels {
namespace {

constexpr size_t kColumns[] = {0,   1,   2,   3,   4,   15,  16,
                               17,  31,  32,  33,  47,  127, 128,
                               129, 160, 255, 256, 260, 512, 1000};
// Those with products.
constexpr WeightForm kForms[] = {WeightForm::kF32,     WeightForm::kBf16,
                                 WeightForm::kInt8,    WeightForm::kInt4,
                                 WeightForm::kF32Rows, WeightForm::kReference};

WeightMatrix MatrixOf(WeightForm form, size_t rows, size_t columns,
                      const std::vector<float>& values) {
  WeightMatrix w(form, rows, columns);
  for (size_t row = 0; row < rows; ++row) {
    w.SetRow(row, values.data() + row * columns);
  }
  return w;
}

WeightMatrix RandomWeights(WeightForm form, size_t rows, size_t columns,
                           uint32_t seed) {
  return MatrixOf(form, rows, columns, RandomFloats(rows * columns, seed));
}

Activations MakeActivations(WeightForm form, const std::vector<float>& x,
                            size_t rows, size_t columns) {
  ThreadPool pool(1);
  Activations activations;
  activations.Assign(ActivationFormFor(form), x.data(), rows, columns, columns,
                     pool);
  return activations;
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

// The order that panel.h promises for panels of floats.
float GroupedDot(const float* x, const float* w, size_t size) {
  float sum = 0;
  for (size_t first = 0; first < size; first += kActivationGroup) {
    float group = 0;
    for (size_t i = first; i < std::min(size, first + kActivationGroup); ++i) {
      group += x[i] * w[i];
    }
    sum += group;
  }
  return sum;
}

// What an integer form's code is: its value over its scale.
int64_t Code(float value, float scale) {
  return scale == 0 ? 0 : std::llround(value / scale);
}

float MaxMagnitude(const float* values, size_t count) {
  float max = 0;
  for (size_t i = 0; i < count; ++i) max = std::max(max, std::abs(values[i]));
  return max;
}

// The formulas of panel.h, one operation after the other, for one row of
// activations and one of weights as WeightMatrix::GetRow gives them.
float PlainInt8(const float* x, const float* w, size_t columns) {
  // A row's largest code is 127, so that its scale can be read back.
  const float w_scale = MaxMagnitude(w, columns) / 127;
  float sum = 0;
  for (size_t first = 0; first < columns; first += kActivationGroup) {
    const size_t count = std::min(kActivationGroup, columns - first);
    int8_t codes[kActivationGroup];
    const float x_scale = QuantizeInt8(x + first, count, codes);
    int64_t dot = 0;
    for (size_t i = 0; i < count; ++i) {
      dot += codes[i] * Code(w[first + i], w_scale);
    }
    sum += static_cast<float>(dot) * x_scale;
  }
  return sum;
}

float PlainInt4(const float* x, const float* w, size_t columns) {
  float sum = 0;
  for (size_t first = 0; first < columns; first += kActivationGroup) {
    const size_t count = std::min(kActivationGroup, columns - first);
    int8_t codes[kActivationGroup];
    const float x_scale = QuantizeInt8(x + first, count, codes);
    float inner = 0;
    for (size_t part = 0; part < count; part += kInt4Group) {
      const size_t size = std::min(kInt4Group, count - part);
      uint8_t w_codes[kInt4Group];
      const float w_scale = QuantizeInt4(w + first + part, size, w_codes);
      int64_t dot = 0;
      for (size_t i = 0; i < size; ++i) {
        dot += codes[part + i] * (static_cast<int64_t>(w_codes[i]) - 8);
      }
      inner += static_cast<float>(dot) * w_scale;
    }
    sum += inner * x_scale;
  }
  return sum;
}

TEST(WeightMatrixTest, KeepsRoundedRows) {
  for (const WeightForm form :
       {WeightForm::kF32, WeightForm::kBf16, WeightForm::kF32Rows,
        WeightForm::kBf16Rows, WeightForm::kReference}) {
    const bool f32 = form != WeightForm::kBf16 && form != WeightForm::kBf16Rows;
    WeightMatrix w(form, 3, 7);
    const std::vector<float> values = RandomFloats(7, 1);
    w.SetRow(1, values.data());
    std::vector<float> row(7, -1);
    w.GetRow(0, row.data());
    EXPECT_EQ(row, std::vector<float>(7, 0));
    w.GetRow(1, row.data());
    for (size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(row[i], f32 ? values[i] : RoundToBf16(values[i]));
    }
  }
}

// Half a step of the codes: max / 127 / 2 of a row, and of a group of 32 with
// 16 codes max / 7.5 / 2 for the best scale, one bf16 rounding (2^-8) apart.
TEST(WeightMatrixTest, IntegerRowsAreWithinHalfAStep) {
  for (const size_t columns : {1, 5, 32, 33, 127, 130, 256}) {
    const size_t rows = 67;
    const std::vector<float> values = RandomFloats(rows * columns, 2);
    const WeightMatrix int8 =
        MatrixOf(WeightForm::kInt8, rows, columns, values);
    const WeightMatrix int4 =
        MatrixOf(WeightForm::kInt4, rows, columns, values);
    std::vector<float> row(columns);
    for (size_t r = 0; r < rows; ++r) {
      const float* exact = values.data() + r * columns;
      int8.GetRow(r, row.data());
      const float step = MaxMagnitude(exact, columns) / 127;
      for (size_t i = 0; i < columns; ++i) {
        ASSERT_NEAR(row[i], exact[i], step * 0.5001f);
      }
      int4.GetRow(r, row.data());
      for (size_t g = 0; g < columns; g += kInt4Group) {
        const size_t count = std::min(kInt4Group, columns - g);
        const float max = MaxMagnitude(exact + g, count);
        double squares = 0;
        double bound = 0;
        for (size_t i = g; i < g + count; ++i) {
          squares += std::pow(row[i] - exact[i], 2);
          // What codes for max / 7.5 with the same rounding would do at worst.
          bound += std::pow(max / 7.5 * 0.51 + max / 256, 2);
        }
        ASSERT_LE(squares, bound);
      }
    }
  }
}

TEST(WeightMatrixTest, MayBeEmpty) {
  for (const WeightForm form : kForms) {
    EXPECT_EQ(WeightMatrix(form, 0, 5).bytes(), 0u);
    WeightMatrix w(form, 5, 0);
    EXPECT_EQ(w.bytes(), 0u);
    w.SetRow(4, nullptr);
    w.GetRow(4, nullptr);
  }
}

TEST(WeightMatrixTest, CountsItsBytes) {
  EXPECT_EQ(WeightMatrix(WeightForm::kF32Rows, 3, 5).bytes(), 60u);
  EXPECT_EQ(WeightMatrix(WeightForm::kBf16Rows, 3, 5).bytes(), 30u);
  EXPECT_EQ(WeightMatrix(WeightForm::kReference, 3, 5).bytes(), 60u);
  EXPECT_EQ(WeightMatrix(WeightForm::kF32, 65, 5).bytes(), 2u * 64 * 5 * 4);
  // 5 columns are 3 steps of 2.
  EXPECT_EQ(WeightMatrix(WeightForm::kBf16, 65, 5).bytes(), 2u * 64 * 3 * 4);
  // 65 rows are two panels of 64; 129 columns are 33 steps of 4.
  EXPECT_EQ(WeightMatrix(WeightForm::kInt8, 65, 129).bytes(),
            2u * 64 * (33 * 4 + 4));
  // 5 groups of 32 columns, half a byte each, with a bf16 scale.
  EXPECT_EQ(WeightMatrix(WeightForm::kInt4, 65, 129).bytes(),
            2u * 64 * 5 * (16 + 2));
}

TEST(WeightMatrixTest, OneThatDoesNotFitIsAnErrorWithItsSize) {
  EXPECT_EQ(
      WeightMatrix::Create(WeightForm::kBf16, size_t{1} << 30, size_t{1} << 29)
          .status(),
      absl::ResourceExhaustedError(
          "memory: the system refuses 1152921504606846976 bytes"));
  // Nor does a size that no number counts.
  for (const WeightForm form : kForms) {
    EXPECT_EQ(WeightMatrix::Create(form, size_t{1} << 40, size_t{1} << 40)
                  .status()
                  .code(),
              absl::StatusCode::kResourceExhausted);
  }
}

// A product passes through its multiplication and, in panels, at most 64
// additions in its group and as many as there are groups: |error| <= gamma(n /
// 64 + 66) |x| |w|. With 16 partial sums it is at most ceil(n / 16) additions
// and 4 in the tree.
TEST(MatMulTest, FloatFormsAreTheirFormulaAndNearTheExactProduct) {
  ThreadPool pool(2);
  for (const WeightForm form :
       {WeightForm::kF32, WeightForm::kBf16, WeightForm::kF32Rows}) {
    const bool rows_form = form == WeightForm::kF32Rows;
    for (const size_t columns : kColumns) {
      const size_t rows = 69;
      const size_t batch = 11;
      const WeightMatrix w = RandomWeights(form, rows, columns, 3);
      const std::vector<float> x = RandomFloats(batch * columns, 4);
      const Activations activations = MakeActivations(form, x, batch, columns);
      ForEachIsa([&] {
        std::vector<float> y(batch * rows, NAN);
        MatMul(w, activations, y.data(), pool);
        std::vector<float> row(columns);
        for (size_t i = 0; i < batch * rows; ++i) {
          w.GetRow(i % rows, row.data());
          const float* const values = x.data() + i / rows * columns;
          ASSERT_EQ(y[i], rows_form ? FixedOrderDot(values, row.data(), columns)
                                    : GroupedDot(values, row.data(), columns))
              << WeightFormName(form) << " columns " << columns;
        }
      });
      std::vector<float> y(batch * rows, NAN);
      MatMul(w, activations, y.data(), pool);
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
                      Gamma(rows_form ? columns / 16.0 + 6
                                      : std::min<double>(columns, 64) +
                                            columns / 64.0 + 2) *
                          magnitude)
              << WeightFormName(form) << " columns " << columns;
        }
      }
    }
  }
}

// Bit for bit, on every instruction set: the sums are integers.
TEST(MatMulTest, Int8IsItsFormula) {
  ThreadPool pool(2);
  for (const size_t columns : kColumns) {
    for (const size_t rows : {1, 64, 77}) {
      for (const size_t batch : {1, 2, 3, 4, 5, 6, 7, 13, 17, 31, 49}) {
        const std::vector<float> values = RandomFloats(rows * columns, 3);
        const WeightMatrix w =
            MatrixOf(WeightForm::kInt8, rows, columns, values);
        const std::vector<float> x = RandomFloats(batch * columns, 4);
        const Activations activations =
            MakeActivations(WeightForm::kInt8, x, batch, columns);
        std::vector<float> expected(batch * rows);
        std::vector<float> row(columns);
        for (size_t o = 0; o < rows; ++o) {
          w.GetRow(o, row.data());
          const float scale =
              MaxMagnitude(values.data() + o * columns, columns) / 127.0f;
          for (size_t i = 0; i < batch; ++i) {
            expected[i * rows + o] =
                PlainInt8(x.data() + i * columns, row.data(), columns) * scale;
          }
        }
        ForEachIsa([&] {
          std::vector<float> y(batch * rows, NAN);
          MatMul(w, activations, y.data(), pool);
          ASSERT_EQ(y, expected) << columns << " columns, " << batch << " rows";
        });
      }
    }
  }
}

TEST(MatMulTest, Int4IsItsFormula) {
  ThreadPool pool(2);
  for (const size_t columns : kColumns) {
    for (const size_t rows : {1, 77}) {
      for (const size_t batch : {1, 2, 3, 6, 7, 13, 31, 49}) {
        const std::vector<float> values = RandomFloats(rows * columns, 5);
        const WeightMatrix w =
            MatrixOf(WeightForm::kInt4, rows, columns, values);
        const std::vector<float> x = RandomFloats(batch * columns, 6);
        const Activations activations =
            MakeActivations(WeightForm::kInt4, x, batch, columns);
        std::vector<float> expected(batch * rows);
        for (size_t i = 0; i < batch * rows; ++i) {
          expected[i] = PlainInt4(x.data() + i / rows * columns,
                                  values.data() + i % rows * columns, columns);
        }
        ForEachIsa([&] {
          std::vector<float> y(batch * rows, NAN);
          MatMul(w, activations, y.data(), pool);
          ASSERT_EQ(y, expected) << columns << " columns, " << batch << " rows";
        });
      }
    }
  }
}

// Codes at their ends: the largest sums that a group can have. An int4 group
// with one -8 keeps its other codes at 7, whose bytes, 15, are the largest.
TEST(MatMulTest, ExtremeCodesDoNotOverflow) {
  ThreadPool pool(1);
  const size_t columns = 16384;
  const size_t batch = 15;
  std::vector<float> mixed(3 * columns, 7.0f);
  for (size_t i = 0; i < mixed.size(); i += kInt4Group) mixed[i] = -8.0f;
  for (const std::vector<float>& values :
       {std::vector<float>(3 * columns, 3.0f),
        std::vector<float>(3 * columns, -3.0f), mixed}) {
    for (const WeightForm form : {WeightForm::kInt8, WeightForm::kInt4}) {
      const WeightMatrix w = MatrixOf(form, 3, columns, values);
      std::vector<float> row(columns);
      w.GetRow(0, row.data());
      const double sum = std::accumulate(row.begin(), row.end(), 0.0);
      double magnitudes = 0;
      for (const float weight : row) magnitudes += std::abs(weight);
      for (const float x : {2.0f, -2.0f}) {
        const Activations activations = MakeActivations(
            form, std::vector<float>(batch * columns, x), batch, columns);
        ForEachIsa([&] {
          std::vector<float> y(batch * 3);
          MatMul(w, activations, y.data(), pool);
          for (const float value : y) {
            // A sum over 256 groups, whose own were rounded a few times.
            EXPECT_NEAR(value, x * sum, Gamma(256 + 8) * 2.0 * magnitudes);
          }
        });
      }
    }
  }
}

TEST(MatMulTest, WhatIsNotFiniteShows) {
  ThreadPool pool(1);
  const size_t columns = 300;
  for (const WeightForm form : kForms) {
    const WeightMatrix w = RandomWeights(form, 5, columns, 8);
    std::vector<float> x = RandomFloats(2 * columns, 9);
    x[columns + 200] = INFINITY;
    std::vector<float> y(2 * 5);
    MatMul(w, MakeActivations(form, x, 2, columns), y.data(), pool);
    for (size_t o = 0; o < 5; ++o) {
      EXPECT_TRUE(std::isfinite(y[o]));
      EXPECT_FALSE(std::isfinite(y[5 + o])) << WeightFormName(form);
    }
  }
}

// Large enough for many chunks per thread and several batches of rows.
TEST(MatMulTest, ResultsDependOnTheirOwnRowsOnly) {
  ForEachIsa([] {
    const size_t rows = 301;
    const size_t columns = 1501;
    const size_t batch = 64;
    const std::vector<float> x = RandomFloats(batch * columns, 5);
    for (const WeightForm form : kForms) {
      const WeightMatrix w = RandomWeights(form, rows, columns, 6);
      const Activations activations = MakeActivations(form, x, batch, columns);
      const auto multiply = [&](size_t first, size_t count, ThreadPool& pool) {
        std::vector<float> y(count * rows, NAN);
        MatMul({{.w = &w,
                 .num_rows = rows,
                 .x = &activations,
                 .first_x = first,
                 .batch = count,
                 .y = y.data(),
                 .y_stride = rows}},
               pool);
        return y;
      };
      ThreadPool one(1);
      std::vector<float> expected;
      for (size_t i = 0; i < batch; ++i) {
        const std::vector<float> y = multiply(i, 1, one);
        expected.insert(expected.end(), y.begin(), y.end());
      }
      for (int threads = 1; threads <= 4; ++threads) {
        ThreadPool pool(threads);
        for (const size_t part : {size_t{1}, size_t{7}, batch}) {
          const std::vector<float> y = multiply(batch - part, part, pool);
          for (size_t i = 0; i < part * rows; ++i) {
            ASSERT_EQ(y[i], expected[(batch - part) * rows + i])
                << WeightFormName(form);
          }
        }
      }
    }
  });
}

TEST(MatMulTest, SubRangesAndStepsTouchOnlyTheirPart) {
  const size_t columns = 137;
  const size_t batch = 3;
  const size_t y_stride = 110;
  const std::vector<float> x = RandomFloats(8 * columns, 8);
  ThreadPool pool(3);
  for (const WeightForm form : kForms) {
    const WeightMatrix w = RandomWeights(form, 200, columns, 7);
    const Activations activations = MakeActivations(form, x, 8, columns);
    std::vector<float> whole(8 * 200);
    MatMul(w, activations, whole.data(), pool);
    std::vector<float> y(batch * y_stride, 42);
    MatMul({{.w = &w,
             .first_row = 43,
             .num_rows = 101,
             .x = &activations,
             .first_x = 1,
             .x_step = 3,
             .batch = batch,
             .y = y.data(),
             .y_stride = y_stride}},
           pool);
    for (size_t i = 0; i < batch; ++i) {
      for (size_t o = 0; o < y_stride; ++o) {
        EXPECT_EQ(y[i * y_stride + o],
                  o < 101 ? whole[(1 + 3 * i) * 200 + 43 + o] : 42.0f);
      }
    }
  }
}

TEST(MatMulTest, SeveralProductsShareOneLoop) {
  const size_t columns = 200;
  const std::vector<float> x = RandomFloats(2 * columns, 8);
  ThreadPool pool(3);
  for (const WeightForm form : kForms) {
    const Activations activations = MakeActivations(form, x, 2, columns);
    std::vector<WeightMatrix> matrices;
    std::vector<std::vector<float>> results;
    for (const size_t rows : {5, 0, 129, 64}) {
      matrices.push_back(RandomWeights(form, rows, columns, 7));
      results.emplace_back(2 * rows, NAN);
    }
    std::vector<MatMulArgs> products;
    for (size_t i = 0; i < matrices.size(); ++i) {
      products.push_back({.w = &matrices[i],
                          .num_rows = matrices[i].rows(),
                          .x = &activations,
                          .batch = 2,
                          .y = results[i].data(),
                          .y_stride = matrices[i].rows()});
    }
    MatMul(products, pool);
    for (size_t i = 0; i < matrices.size(); ++i) {
      std::vector<float> alone(2 * matrices[i].rows());
      MatMul(matrices[i], activations, alone.data(), pool);
      EXPECT_EQ(results[i], alone);
    }
  }
}

// Some rows, in two ranges, of two products, by tiles of several panels: the
// bits of the whole product, and nothing else is written.
TEST(MatMulTest, RangesOfRowsAreThoseOfTheWholeProduct) {
  constexpr size_t kRows = 130, kInputs = 100;
  const std::vector<RowRange> ranges = {{3, 71}, {90, 127}};
  for (const WeightForm form : kForms) {
    const std::vector<float> x = RandomFloats(kRows * kInputs, 1);
    const Activations activations = MakeActivations(form, x, kRows, kInputs);
    for (const size_t outputs :
         {size_t{0}, size_t{1}, size_t{64}, size_t{300}}) {
      const WeightMatrix w = RandomWeights(form, outputs, kInputs, 2);
      const WeightMatrix w2 = RandomWeights(form, 70, kInputs, 3);
      for (const int threads : {1, 3}) {
        ThreadPool pool(threads);
        std::vector<float> whole(kRows * outputs), whole2(kRows * 70);
        MatMul(w, activations, whole.data(), pool);
        MatMul(w2, activations, whole2.data(), pool);
        for (const size_t tile : {size_t{0}, size_t{64}, size_t{192}}) {
          const size_t stride = outputs + 2;
          std::vector<float> y(kRows * stride, 7), y2(kRows * 70, 7);
          const MatMulRangesArgs first = {.w = &w,
                                          .x = &activations,
                                          .ranges = ranges,
                                          .y = y.data(),
                                          .y_stride = stride,
                                          .first_y = 3,
                                          .tile_columns = tile};
          const MatMulRangesArgs second = {.w = &w2,
                                           .x = &activations,
                                           .ranges = ranges,
                                           .y = y2.data(),
                                           .y_stride = 70,
                                           .tile_columns = tile};
          for (const MatMulRangesArgs& args : {first, second}) {
            pool.ParallelFor(NumTiles(args), 1, [&](size_t begin, size_t end) {
              for (size_t i = begin; i < end; ++i) MultiplyTile(args, i);
            });
          }
          for (size_t row = 0; row < kRows; ++row) {
            const bool within =
                (row >= 3 && row < 71) || (row >= 90 && row < 127);
            for (size_t o = 0; o < stride && row >= 3; ++o) {
              ASSERT_EQ(y[(row - 3) * stride + o],
                        within && o < outputs ? whole[row * outputs + o] : 7);
            }
            for (size_t o = 0; o < 70; ++o) {
              ASSERT_EQ(y2[row * 70 + o], within ? whole2[row * 70 + o] : 7);
            }
          }
        }
      }
    }
  }
}

// Parts of a product are whole tiles, and never more than go through a panel.
TEST(MatMulTest, RowsThatAreEnoughFillWhatGoesTogether) {
  ForEachIsa([&] {
    for (const auto form :
         {Activations::Form::kF32, Activations::Form::kInt8}) {
      const ProductRows rows = BestProductRows(form);
      const bool tiles =
          form == Activations::Form::kInt8 && CurrentIsa() == Isa::kAmx;
      EXPECT_EQ(rows.together, tiles ? 16u : 1u);
      EXPECT_EQ(rows.enough % rows.together, 0u);
      EXPECT_GE(rows.enough, rows.together);
      EXPECT_LE(rows.enough, kMaxPanelBatch);
    }
  });
}

// A row that another Activations has quantised multiplies as if it had been
// quantised here.
TEST(MatMulTest, CodesThatTravelledAreTheSameRow) {
  ThreadPool pool(1);
  for (const WeightForm form : {WeightForm::kInt8, WeightForm::kInt4}) {
    for (const size_t columns : kColumns) {
      const WeightMatrix w = RandomWeights(form, 70, columns, 4);
      const std::vector<float> x = RandomFloats(3 * columns, 5);
      const Activations sent = MakeActivations(form, x, 3, columns);
      Activations come;
      come.Reshape(Activations::Form::kInt8, 3, columns);
      for (size_t row = 0; row < 3; ++row) {
        // Of any alignment.
        std::vector<char> bytes(1 + columns + sent.groups() * sizeof(float));
        std::copy_n(reinterpret_cast<const char*>(sent.Codes(row)), columns,
                    bytes.data() + 1);
        std::copy_n(reinterpret_cast<const char*>(sent.Scales(row)),
                    sent.groups() * sizeof(float), bytes.data() + 1 + columns);
        come.SetCodes(row, bytes.data() + 1, bytes.data() + 1 + columns);
      }
      std::vector<float> want(3 * 70), got(3 * 70);
      MatMul(w, sent, want.data(), pool);
      MatMul(w, come, got.data(), pool);
      ASSERT_EQ(got, want) << columns;
    }
  }
}

TEST(MatMulTest, HeadsMoveByTheirSteps) {
  const size_t heads = 5;
  const size_t head_rows = 70;
  const size_t columns = 40;
  const size_t batch = 3;
  ThreadPool pool(2);
  const std::vector<float> x = RandomFloats(batch * heads * columns, 8);
  for (const WeightForm form : kForms) {
    const WeightMatrix w = RandomWeights(form, heads * head_rows, columns, 7);
    const Activations activations =
        MakeActivations(form, x, batch * heads, columns);
    std::vector<float> y(batch * heads * 33, NAN);
    MatMulPerHead({.first = {.w = &w,
                             .first_row = 20,
                             .num_rows = 33,
                             .x = &activations,
                             .x_step = heads,
                             .batch = batch,
                             .y = y.data(),
                             .y_stride = heads * 33},
                   .heads = heads,
                   .row_step = head_rows,
                   .x_step = 1,
                   .y_step = 33},
                  pool);
    for (size_t i = 0; i < batch; ++i) {
      for (size_t h = 0; h < heads; ++h) {
        std::vector<float> alone(33);
        MatMul({{.w = &w,
                 .first_row = 20 + h * head_rows,
                 .num_rows = 33,
                 .x = &activations,
                 .first_x = i * heads + h,
                 .batch = 1,
                 .y = alone.data(),
                 .y_stride = 33}},
               pool);
        for (size_t o = 0; o < 33; ++o) {
          EXPECT_EQ(y[(i * heads + h) * 33 + o], alone[o]);
        }
      }
    }
  }
}

TEST(MatMulTest, ZeroSizesAreAllowed) {
  ThreadPool pool(2);
  for (const WeightForm form : kForms) {
    const WeightMatrix no_columns(form, 3, 0);
    std::vector<float> y(6, 1);
    MatMul(no_columns, MakeActivations(form, {}, 2, 0), y.data(), pool);
    EXPECT_EQ(y, std::vector<float>(6, 0));
    const WeightMatrix no_rows(form, 0, 3);
    MatMul(no_rows, MakeActivations(form, std::vector<float>(6, 1), 2, 3),
           nullptr, pool);
    const WeightMatrix w(form, 2, 3);
    MatMul(w, MakeActivations(form, {}, 0, 3), nullptr, pool);
  }
}

}  // namespace
}  // namespace ringfleet::kernels
