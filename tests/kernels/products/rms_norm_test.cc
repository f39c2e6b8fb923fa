// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/rms_norm.h"

#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/each_isa.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::kernels {
namespace {

// All rows as products read them.
std::string StoredRows(const Activations& x) {
  std::string bytes(x.rows() * x.StoredRowBytes(), 0);
  for (size_t row = 0; row < x.rows(); ++row) {
    x.StoreRow(row, bytes.data() + row * x.StoredRowBytes());
  }
  if (x.form() == Activations::Form::kF32) return bytes;
  const auto append = [&bytes](const int32_t* sums, size_t count) {
    bytes.append(reinterpret_cast<const char*>(sums), count * sizeof(*sums));
  };
  for (size_t row = 0; row < x.rows(); ++row) {
    append(x.Sums(row), x.groups() * Activations::kSumsPerGroup);
    append(x.Biases(row), x.groups());
  }
  return bytes;
}

// The sum of squares has no cancellation: gamma(n / 16 + 6) relative, of which
// the root takes half; mean, eps, root, division and gain add one rounding
// each.
TEST(RmsNormTest, IsNearTheExactResult) {
  for (const size_t size : {1, 2, 15, 16, 17, 100, 512, 1536, 7168}) {
    const std::vector<float> x = RandomFloats(2 * size, 1, -3, 3);
    const std::vector<float> gain = RandomFloats(size, 2, 0.5f, 2);
    std::vector<float> y(2 * size);
    const float eps = 1e-6f;
    ThreadPool pool(1);
    RmsNorm(x.data(), 2, size, size, gain.data(), eps, y.data(), size, pool);
    for (size_t row = 0; row < 2; ++row) {
      double squares = 0;
      for (size_t j = 0; j < size; ++j) {
        squares += std::pow(x[row * size + j], 2.0);
      }
      const double root = std::sqrt(squares / static_cast<double>(size) + eps);
      for (size_t j = 0; j < size; ++j) {
        const double exact = gain[j] * (x[row * size + j] / root);
        EXPECT_NEAR(y[row * size + j], exact,
                    Gamma(size / 32.0 + 8) * std::abs(exact));
      }
    }
  }
}

// What makes hosts of different kinds choose the same experts.
TEST(RmsNormTest, EveryInstructionSetGivesTheSameBits) {
  ThreadPool pool(2);
  for (const size_t size : {1, 5, 16, 31, 100, 7168}) {
    const std::vector<float> x = RandomFloats(5 * size, 1, -3, 3);
    const std::vector<float> gain = RandomFloats(size, 2, 0.5f, 2);
    std::vector<float> first;
    ForEachIsa([&] {
      std::vector<float> y(5 * size);
      RmsNorm(x.data(), 5, size, size, gain.data(), 1e-6f, y.data(), size,
              pool);
      if (first.empty()) first = y;
      EXPECT_EQ(y, first) << "size " << size;
    });
  }
}

TEST(RmsNormTest, AddRmsNormIsAnAdditionANormAndARounding) {
  ThreadPool pool(2);
  for (const size_t size : {1, 5, 16, 31, 100, 7168}) {
    const size_t rows = 7;
    std::vector<float> x = RandomFloats(rows * size, 1);
    const std::vector<float> summand = RandomFloats(rows * size, 2);
    const std::vector<float> gain = RandomFloats(size, 3);
    std::vector<float> sums(rows * size);
    std::vector<float> expected(rows * size);
    for (size_t i = 0; i < x.size(); ++i) sums[i] = x[i] + summand[i];
    RmsNorm(sums.data(), rows, size, size, gain.data(), 1e-6f, expected.data(),
            size, pool);
    const std::vector<float> before = x;
    for (const auto form :
         {Activations::Form::kF32, Activations::Form::kInt8}) {
      Activations wanted, normed;
      wanted.Assign(form, expected.data(), rows, size, size, pool);
      std::vector<float> y(rows * size);
      x = before;
      AddRmsNorm(summand.data(), rows, size, gain.data(), 1e-6f, x.data(),
                 y.data(), form, &normed, pool);
      EXPECT_EQ(x, sums);
      EXPECT_EQ(y, expected);
      EXPECT_EQ(StoredRows(normed), StoredRows(wanted));
      // In place, and without a summand.
      y = sums;
      RmsNorm(y.data(), rows, size, gain.data(), 1e-6f, y.data(), form, &normed,
              pool);
      EXPECT_EQ(y, expected);
      EXPECT_EQ(StoredRows(normed), StoredRows(wanted));
    }
  }
}

TEST(RmsNormTest, EpsilonKeepsZerosFinite) {
  const std::vector<float> gain(4, 1);
  std::vector<float> x(4, 0);
  ThreadPool pool(1);
  RmsNorm(x.data(), 1, 4, 4, gain.data(), 1e-6f, x.data(), 4, pool);
  EXPECT_EQ(x, std::vector<float>(4, 0));
}

TEST(RmsNormTest, WorksInPlaceOnStridedRows) {
  const size_t size = 33;
  const size_t stride = 50;
  const std::vector<float> gain = RandomFloats(size, 3);
  const std::vector<float> x = RandomFloats(3 * stride, 4);
  std::vector<float> in_place = x;
  ThreadPool pool(3);
  RmsNorm(in_place.data(), 3, size, stride, gain.data(), 1e-6f, in_place.data(),
          stride, pool);
  for (size_t row = 0; row < 3; ++row) {
    std::vector<float> y(size);
    RmsNorm(&x[row * stride], 1, size, size, gain.data(), 1e-6f, y.data(), size,
            pool);
    for (size_t j = 0; j < stride; ++j) {
      const float expected = j < size ? y[j] : x[row * stride + j];
      EXPECT_EQ(in_place[row * stride + j], expected);
    }
  }
}

}  // namespace
}  // namespace ringfleet::kernels
