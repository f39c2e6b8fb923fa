// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/rope.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::kernels {
namespace {

// The rope_scaling of the published V2, V3 and R1 configurations.
RopeParameters PublishedYarn() {
  RopeParameters parameters;
  parameters.yarn = true;
  parameters.factor = 40;
  parameters.mscale = 1;
  parameters.mscale_all_dim = 1;
  return parameters;
}

TEST(RopeTest, YarnFrequenciesOfThePublishedModels) {
  const Rope rope(PublishedYarn());
  const std::vector<double>& f = rope.frequencies();
  ASSERT_EQ(f.size(), 32u);
  EXPECT_EQ(f[0], 1);
  const double expected[] = {
      .0562341325,   .0390069266,   .0268793601,   .0183781462,   .0124479559,
      .00833450895,  .0055,         .00356199749,  .0022493653,   .00137051364,
      .000790569415, .000414990398, .000177827941, .0000333380358};
  for (int j = 10; j <= 23; ++j) {
    EXPECT_NEAR(f[j], expected[j - 10], 1e-8 * expected[j - 10]) << j;
  }
  EXPECT_NEAR(f[31], 3.33380358e-6, 1e-14);
  EXPECT_EQ(rope.amplitude(), 1);
}

TEST(RopeTest, WithoutYarnThereIsNoScaling) {
  RopeParameters parameters = PublishedYarn();
  parameters.yarn = false;
  const Rope rope(parameters);
  for (int j = 0; j < 32; ++j) {
    EXPECT_NEAR(rope.frequencies()[j], std::pow(10000.0, -j / 32.0), 1e-15);
  }
  EXPECT_EQ(rope.amplitude(), 1);
}

TEST(RopeTest, MscaleOfThePublishedModels) {
  EXPECT_NEAR(YarnMscale(40, 1), 1.3688879454, 1e-10);
  EXPECT_NEAR(YarnMscale(40, 0.707), 1.2608037774, 1e-10);
  EXPECT_EQ(YarnMscale(1, 0.707), 1);
  EXPECT_EQ(YarnMscale(0.5, 1), 1);
}

TEST(RopeTest, AmplitudeIsTheRatioOfTheMscales) {
  RopeParameters parameters = PublishedYarn();
  parameters.mscale_all_dim = 0;
  EXPECT_NEAR(Rope(parameters).amplitude(), 1.3688879454, 1e-10);
  parameters.mscale_all_dim = 0.707;
  EXPECT_NEAR(Rope(parameters).amplitude(), 1.3688879454 / 1.2608037774, 1e-10);
}

TEST(RopeTest, EqualCorrectionBordersStayFinite) {
  RopeParameters parameters = PublishedYarn();
  parameters.beta_fast = 1e9;  // Both borders fall on pair 0.
  parameters.beta_slow = 1e9;
  const Rope rope(parameters);
  for (const double f : rope.frequencies()) {
    EXPECT_TRUE(std::isfinite(f));
  }
}

// Each result is two products of a float and a rounded factor, and one sum:
// three roundings of at most u each.
TEST(RopeTest, RotatesInterleavedPairs) {
  RopeParameters parameters = PublishedYarn();
  parameters.mscale_all_dim = 0.707;
  for (const int dim : {2, 6, 64}) {
    parameters.dim = dim;
    const Rope rope(parameters);
    for (const int64_t position : {0, 1, 17, 4095, 163839}) {
      const std::vector<float> x = RandomFloats(dim, dim);
      std::vector<float> y = x;
      rope.Rotate(y.data(), position);
      for (int j = 0; j < dim / 2; ++j) {
        const double angle = position * rope.frequencies()[j];
        const double c = rope.amplitude() * std::cos(angle);
        const double s = rope.amplitude() * std::sin(angle);
        const double even = x[2 * j];
        const double odd = x[2 * j + 1];
        const double bound =
            Gamma(3) * rope.amplitude() * (std::abs(even) + std::abs(odd));
        EXPECT_NEAR(y[2 * j], even * c - odd * s, bound);
        EXPECT_NEAR(y[2 * j + 1], odd * c + even * s, bound);
      }
    }
  }
}

TEST(RopeTest, ScoresDependOnTheDistanceOnly) {
  const Rope rope(PublishedYarn());
  const std::vector<float> q = RandomFloats(64, 1);
  const std::vector<float> k = RandomFloats(64, 2);
  const auto score = [&](int64_t q_position, int64_t k_position) {
    std::vector<float> a = q;
    std::vector<float> b = k;
    rope.Rotate(a.data(), q_position);
    rope.Rotate(b.data(), k_position);
    double sum = 0;
    for (int i = 0; i < 64; ++i) sum += static_cast<double>(a[i]) * b[i];
    return sum;
  };
  // Pairs have norms below sqrt 2: 32 products of two rotated pairs.
  const double bound = 32 * 2 * 2 * Gamma(3) * 2;
  EXPECT_NEAR(score(105, 100), score(5, 0), bound);
  EXPECT_NEAR(score(120005, 120000), score(5, 0), bound);
}

TEST(RopeTest, RowsRotateAsOneByOne) {
  const Rope rope(PublishedYarn());
  const std::vector<float> x = RandomFloats(5 * 192, 3);
  std::vector<float> together = x;
  std::vector<float> single = x;
  rope.Rotate(together.data() + 128, 5, 192, 1234);
  for (int row = 0; row < 5; ++row) {
    rope.Rotate(single.data() + row * 192 + 128, 1234);
  }
  EXPECT_EQ(together, single);
  for (int i = 0; i < 128; ++i) EXPECT_EQ(together[i], x[i]);
}

}  // namespace
}  // namespace ringfleet::kernels
