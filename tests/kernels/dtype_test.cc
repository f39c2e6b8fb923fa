// SPDX-License-Identifier: Apache-2.0
#include "kernels/dtype.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace ringfleet::kernels {
namespace {

TEST(DtypeTest, F8E4M3DecodesTheNamedCodes) {
  EXPECT_EQ(F8E4M3ToFloat(0x01), 0.001953125f);
  EXPECT_EQ(F8E4M3ToFloat(0x07), 0.013671875f);
  EXPECT_EQ(F8E4M3ToFloat(0x08), 0.015625f);
  EXPECT_EQ(F8E4M3ToFloat(0x38), 1.0f);
  EXPECT_EQ(F8E4M3ToFloat(0x7E), 448.0f);
  EXPECT_EQ(F8E4M3ToFloat(0xFE), -448.0f);
  EXPECT_TRUE(std::signbit(F8E4M3ToFloat(0x80)));
  EXPECT_TRUE(std::isnan(F8E4M3ToFloat(0x7F)));
  EXPECT_TRUE(std::isnan(F8E4M3ToFloat(0xFF)));
}

TEST(DtypeTest, Bf16RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(FloatToBf16(1.0f), 0x3f80);
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_TRUE(std::isnan(RoundToBf16(std::nanf(""))));
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = Bf16ToFloat(static_cast<uint16_t>(code));
    if (std::isnan(value)) continue;
    EXPECT_EQ(FloatToBf16(value), code);
  }
}

TEST(DtypeTest, F16DecodesSubnormalsAndInfinity) {
  EXPECT_EQ(F16ToFloat(0x3c00), 1.0f);
  EXPECT_EQ(F16ToFloat(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(F16ToFloat(0xfbff), -65504.0f);
  EXPECT_TRUE(std::isinf(F16ToFloat(0x7c00)));
  EXPECT_TRUE(std::isnan(F16ToFloat(0x7c01)));
}

TEST(DtypeTest, ToFloatReadsUnalignedElements) {
  const std::vector<uint8_t> bytes = {0xff, 0x80, 0x3f, 0x00, 0x40};
  float out[2];
  ToFloat(Dtype::kBf16, bytes.data() + 1, 2, out);
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], 2.0f);
}

}  // namespace
}  // namespace ringfleet::kernels
