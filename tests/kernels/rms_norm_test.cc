// SPDX-License-Identifier: Apache-2.0
#include "kernels/rms_norm.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::kernels {
namespace {

// The sum of squares has no cancellation: gamma(n / 16 + 6) relative, of which
// the root takes half; mean, eps, root, division and gain add one rounding
// each.
TEST(RmsNormTest, IsNearTheExactResult) {
  for (const size_t size : {1, 2, 15, 16, 17, 100, 512, 1536, 7168}) {
    const std::vector<float> x = RandomFloats(2 * size, 1, -3, 3);
    const std::vector<float> gain = RandomFloats(size, 2, 0.5f, 2);
    std::vector<float> y(2 * size);
    const float eps = 1e-6f;
    RmsNorm(x.data(), 2, size, size, gain.data(), eps, y.data(), size);
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

TEST(RmsNormTest, EpsilonKeepsZerosFinite) {
  const std::vector<float> gain(4, 1);
  std::vector<float> x(4, 0);
  RmsNorm(x.data(), 1, 4, 4, gain.data(), 1e-6f, x.data(), 4);
  EXPECT_EQ(x, std::vector<float>(4, 0));
}

TEST(RmsNormTest, WorksInPlaceOnStridedRows) {
  const size_t size = 33;
  const size_t stride = 50;
  const std::vector<float> gain = RandomFloats(size, 3);
  const std::vector<float> x = RandomFloats(3 * stride, 4);
  std::vector<float> in_place = x;
  RmsNorm(in_place.data(), 3, size, stride, gain.data(), 1e-6f, in_place.data(),
          stride);
  for (size_t row = 0; row < 3; ++row) {
    std::vector<float> y(size);
    RmsNorm(&x[row * stride], 1, size, size, gain.data(), 1e-6f, y.data(),
            size);
    for (size_t j = 0; j < stride; ++j) {
      const float expected = j < size ? y[j] : x[row * stride + j];
      EXPECT_EQ(in_place[row * stride + j], expected);
    }
  }
}

}  // namespace
}  // namespace ringfleet::kernels
