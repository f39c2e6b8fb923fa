// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::kernels {
namespace {

constexpr size_t kSizes[] = {0, 1, 3, 4, 7, 8, 15, 16, 17, 100};

TEST(ElementwiseTest, AddsAndScales) {
  for (const size_t size : kSizes) {
    const std::vector<float> x = RandomFloats(size, 1);
    const std::vector<float> y = RandomFloats(size, 2);
    std::vector<float> sum = y;
    AddTo(x.data(), size, sum.data());
    std::vector<float> scaled = y;
    AddScaledTo(0.3f, x.data(), size, scaled.data());
    for (size_t i = 0; i < size; ++i) {
      EXPECT_EQ(sum[i], y[i] + x[i]);
      const float product = 0.3f * x[i];
      EXPECT_EQ(scaled[i], y[i] + product);
    }
  }
}

// exp is within 2 units in the last place (4 u), then one addition, one
// division and one product.
TEST(ElementwiseTest, SiluMultiplyIsNearTheExactResult) {
  for (const size_t size : kSizes) {
    const std::vector<float> gate = RandomFloats(size, 3, -30, 30);
    const std::vector<float> up = RandomFloats(size, 4);
    std::vector<float> y = gate;
    SiluMultiply(y.data(), up.data(), size);
    for (size_t i = 0; i < size; ++i) {
      const double z = gate[i];
      const double exact = z / (1 + std::exp(-z)) * up[i];
      EXPECT_NEAR(y[i], exact, Gamma(7) * std::abs(exact));
    }
  }
}

TEST(ElementwiseTest, SiluOfLargeValuesIsFinite) {
  std::vector<float> gate = {-1e30f, -1000, -89, 89, 1000, 1e30f};
  const std::vector<float> up(gate.size(), 1);
  const std::vector<float> z = gate;
  SiluMultiply(gate.data(), up.data(), gate.size());
  EXPECT_NEAR(gate[1], 0, 1e-30);
  EXPECT_NEAR(gate[2], 0, 1e-30);
  EXPECT_EQ(gate[3], z[3]);
  EXPECT_EQ(gate[4], z[4]);
  EXPECT_EQ(gate[5], z[5]);
  EXPECT_TRUE(std::isfinite(gate[0]));
}

TEST(ElementwiseTest, ArraysConvertAsSingleValuesDo) {
  std::vector<float> values = RandomFloats(1000, 5, -100, 100);
  values[0] = std::numeric_limits<float>::quiet_NaN();
  values[1] = std::numeric_limits<float>::infinity();
  values[2] = std::numeric_limits<float>::max();
  values[3] = -0.0f;
  values[4] = 1e-40f;
  for (const size_t size : {0, 1, 7, 8, 9, 1000}) {
    std::vector<uint16_t> bits(size);
    FloatToBf16(values.data(), size, bits.data());
    std::vector<float> widened(size);
    Bf16ToFloat(bits.data(), size, widened.data());
    for (size_t i = 0; i < size; ++i) {
      EXPECT_EQ(bits[i], FloatToBf16(values[i]));
      EXPECT_EQ(std::bit_cast<uint32_t>(widened[i]),
                static_cast<uint32_t>(bits[i]) << 16);
    }
  }
}

}  // namespace
}  // namespace ringfleet::kernels
