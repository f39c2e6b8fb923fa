// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/latent_cache.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::kernels {
namespace {

std::vector<float> StoreAndLoad(const LatentRowFormat& format,
                                const std::vector<float>& row) {
  std::vector<char> stored(format.bytes());
  StoreLatentRow(format, row.data(), stored.data());
  std::vector<float> loaded(format.numbers(), NAN);
  LoadLatentRows(format, stored.data(), 1, loaded.data(), format.numbers());
  return loaded;
}

TEST(LatentCacheTest, RowsTakeTheirElementsAndScales) {
  EXPECT_EQ((LatentRowFormat{Dtype::kF32, 512, 64}).bytes(), 2304u);
  EXPECT_EQ((LatentRowFormat{Dtype::kBf16, 512, 64}).bytes(), 1152u);
  EXPECT_EQ((LatentRowFormat{Dtype::kInt8, 512, 64}).bytes(), 584u);
}

TEST(LatentCacheTest, Float32KeepsAndBf16RoundsEveryNumber) {
  const std::vector<float> row = RandomFloats(13, 1);
  EXPECT_EQ(StoreAndLoad({Dtype::kF32, 10, 3}, row), row);
  std::vector<float> rounded = row;
  for (float& value : rounded) value = RoundToBf16(value);
  EXPECT_EQ(StoreAndLoad({Dtype::kBf16, 10, 3}, row), rounded);
}

// Half a scale, and the three roundings of scale, product and decoding, 127
// times 3 u relative to a scale.
TEST(LatentCacheTest, Int8IsOffByHalfAScaleOfEachPart) {
  std::vector<float> row = RandomFloats(576, 2, -3, 3);
  for (size_t i = 512; i < 576; ++i) row[i] *= 100;
  const std::vector<float> loaded = StoreAndLoad({Dtype::kInt8, 512, 64}, row);
  for (size_t i = 0; i < row.size(); ++i) {
    const double scale = (i < 512 ? 3.0 : 300.0) / 127;
    EXPECT_NEAR(loaded[i], row[i], scale * (0.5 + 127 * Gamma(3))) << i;
  }
}

TEST(LatentCacheTest, TheLargestNumberOfAPartIsKept) {
  for (const float sign : {1.0f, -1.0f}) {
    const std::vector<float> row = {0.1f, sign * 2.54f, 0.2f, sign * 0.02f, 0};
    const std::vector<float> loaded = StoreAndLoad({Dtype::kInt8, 3, 2}, row);
    EXPECT_FLOAT_EQ(loaded[1], row[1]);
    EXPECT_FLOAT_EQ(loaded[3], row[3]);
    EXPECT_EQ(loaded[4], 0);
  }
}

TEST(LatentCacheTest, ZerosAndTinyNumbersDecodeToZero) {
  const std::vector<float> row = {0, 0, 1e-38f, -1e-38f};
  EXPECT_EQ(StoreAndLoad({Dtype::kInt8, 2, 2}, row),
            (std::vector<float>{0, 0, 0, 0}));
}

TEST(LatentCacheTest, ABadNumberMakesItsPartNan) {
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    const std::vector<float> loaded =
        StoreAndLoad({Dtype::kInt8, 2, 2}, {1, bad, 3, 4});
    EXPECT_TRUE(std::isnan(loaded[0]));
    EXPECT_TRUE(std::isnan(loaded[1]));
    EXPECT_FLOAT_EQ(loaded[3], 4);
  }
}

TEST(LatentCacheTest, AnEmptyRopePartIsAllowed) {
  const std::vector<float> loaded = StoreAndLoad({Dtype::kInt8, 2, 0}, {1, -1});
  EXPECT_FLOAT_EQ(loaded[0], 1);
  EXPECT_FLOAT_EQ(loaded[1], -1);
}

}  // namespace
}  // namespace ringfleet::kernels
