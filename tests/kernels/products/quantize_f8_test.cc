// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/quantize_f8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/products/quantize.h"
#include "kernels/widen.h"
#include "tests/kernels/each_isa.h"

namespace ringfleet::kernels {
namespace {

// The two steps that QuantizeInt8 of a CodeRow of fp8 does in one.
bool WidenThenQuantize(const CodeRow& row, int8_t* codes, float* scale) {
  std::vector<float> values(row.count);
  bool finite = true;
  for (size_t i = 0; i < row.count; ++i) {
    finite &= WidenScaled(Dtype::kF8E4M3, row.codes + i, 1,
                          row.scales[(row.offset + i) / row.block],
                          std::numeric_limits<float>::max(), &values[i]);
  }
  *scale = QuantizeInt8(values.data(), row.count, codes);
  return finite;
}

// Any code but the two of NaN.
std::vector<uint8_t> RandomCodes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> codes(count);
  for (uint8_t& code : codes) {
    code = static_cast<uint8_t>(random() % 0x7f | (random() & 0x80));
  }
  return codes;
}

void ExpectTheTwoSteps(const CodeRow& row) {
  std::vector<int8_t> want(row.count), got(row.count);
  float want_scale = -1, got_scale = -1;
  ASSERT_TRUE(WidenThenQuantize(row, want.data(), &want_scale));
  ASSERT_TRUE(QuantizeInt8(row, got.data(), &got_scale));
  EXPECT_EQ(std::bit_cast<uint32_t>(got_scale),
            std::bit_cast<uint32_t>(want_scale));
  EXPECT_EQ(got, want);
}

TEST(QuantizeF8Test, GivesTheBitsOfWideningAndQuantizing) {
  const std::vector<uint8_t> codes = RandomCodes(4096, 1);
  std::vector<float> scales(4100);
  std::mt19937 random(2);
  for (float& scale : scales) {
    scale = std::ldexp(1.0f + random() % 1000 / 1000.0f, -int(random() % 12));
  }
  ForEachIsa([&] {
    for (const size_t count : {0, 1, 15, 16, 17, 127, 128, 129, 300, 4096}) {
      for (const size_t block : {1, 7, 128, 5000}) {
        for (const size_t offset : {size_t{0}, block / 3, block - 1}) {
          SCOPED_TRACE(::testing::Message() << count << " codes, blocks of "
                                            << block << " from " << offset);
          ExpectTheTwoSteps({.codes = codes.data(),
                             .count = count,
                             .scales = scales.data(),
                             .block = block,
                             .offset = offset});
        }
      }
    }
  });
}

// Each code beside the largest, which then decides how it rounds.
TEST(QuantizeF8Test, EveryCodeRoundsAsItsValueDoes) {
  ForEachIsa([] {
    for (int largest = 1; largest < 0x7f; ++largest) {
      std::vector<uint8_t> codes;
      for (int code = 0; code <= largest; ++code) {
        codes.push_back(static_cast<uint8_t>(code));
        codes.push_back(static_cast<uint8_t>(code | 0x80));
      }
      for (const float scale : {1.0f, 0.3f, 1e-27f}) {
        ExpectTheTwoSteps({.codes = codes.data(),
                           .count = codes.size(),
                           .scales = &scale,
                           .block = 1000});
      }
    }
  });
}

TEST(QuantizeF8Test, WhatIsTooSmallForAScaleIsZero) {
  const std::vector<uint8_t> codes = RandomCodes(200, 3);
  const std::vector<float> scales = {0.0f, 1e-34f};
  ForEachIsa([&] {
    ExpectTheTwoSteps({.codes = codes.data(),
                       .count = 200,
                       .scales = scales.data(),
                       .block = 100});
  });
}

TEST(QuantizeF8Test, TellsOfWhatIsNotFinite) {
  std::vector<int8_t> out(300);
  float scale;
  ForEachIsa([&] {
    for (const size_t place : {0, 63, 64, 150, 299}) {
      std::vector<uint8_t> codes = RandomCodes(300, 4);
      const std::vector<float> scales(3, 1.0f);
      CodeRow row = {.codes = codes.data(),
                     .count = codes.size(),
                     .scales = scales.data(),
                     .block = 128};
      EXPECT_TRUE(QuantizeInt8(row, out.data(), &scale));
      for (const uint8_t nan : {0x7f, 0xff}) {
        codes[place] = nan;
        EXPECT_FALSE(QuantizeInt8(row, out.data(), &scale)) << place;
        // Also times 0.
        const std::vector<float> zeros(3, 0.0f);
        row.scales = zeros.data();
        EXPECT_FALSE(QuantizeInt8(row, out.data(), &scale)) << place;
        row.scales = scales.data();
      }
      // 448 and a scale whose product has no float32.
      std::fill(codes.begin(), codes.end(), 0);
      codes[place] = 0xfe;
      const std::vector<float> huge(3, 1e36f);
      row.scales = huge.data();
      EXPECT_FALSE(QuantizeInt8(row, out.data(), &scale)) << place;
    }
  });
}

}  // namespace
}  // namespace ringfleet::kernels
