// SPDX-License-Identifier: Apache-2.0
#include "kernels/widen.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/each_isa.h"

namespace ringfleet::kernels {
namespace {

constexpr float kNoWidenLimit = std::numeric_limits<float>::max();

TEST(WidenTest, GivesTheBitsOfToFloatTimesTheScale) {
  // Every code of 8 and of 16 bits, from every alignment and with every tail.
  std::vector<uint8_t> bytes(2 * 65536 + 256);
  for (size_t i = 0; i < 65536; ++i) {
    bytes[2 * i] = static_cast<uint8_t>(i);
    bytes[2 * i + 1] = static_cast<uint8_t>(i >> 8);
  }
  ForEachIsa([&] {
    for (const Dtype dtype : {Dtype::kF8E4M3, Dtype::kBf16, Dtype::kF16}) {
      const size_t whole = 65536 * 2 / DtypeBytes(dtype);
      for (const size_t count : {whole, size_t{1}, size_t{37}, size_t{64}}) {
        for (const size_t first : {0, 1, 3, 256}) {
          for (const float scale : {1.0f, 0.37f, 0.0f}) {
            std::vector<float> want(count), got(count);
            ToFloat(dtype, bytes.data() + first, count, want.data());
            WidenScaled(dtype, bytes.data() + first, count, scale,
                        kNoWidenLimit, got.data());
            for (size_t i = 0; i < count; ++i) {
              want[i] *= scale;
              if (std::isnan(want[i]) && std::isnan(got[i])) continue;
              ASSERT_EQ(std::bit_cast<uint32_t>(got[i]),
                        std::bit_cast<uint32_t>(want[i]))
                  << DtypeName(dtype) << " element " << i << " of " << count
                  << " times " << scale;
            }
          }
        }
      }
    }
  });
}

TEST(WidenTest, TellsWhenAnyValueIsBeyondTheLimit) {
  ForEachIsa([] {
    std::vector<float> values(100);
    for (const size_t place : {0, 15, 16, 63, 64, 98, 99}) {
      std::vector<uint8_t> codes(100, 0x38);  // 1
      EXPECT_TRUE(WidenScaled(Dtype::kF8E4M3, codes.data(), 100, 2.0f, 2.0f,
                              values.data()));
      codes[place] = 0xb9;  // -1.125
      EXPECT_FALSE(WidenScaled(Dtype::kF8E4M3, codes.data(), 100, 2.0f, 2.0f,
                               values.data()));
      EXPECT_EQ(values[place], -2.25f);
      codes[place] = 0xff;  // NaN, also times 0.
      EXPECT_FALSE(WidenScaled(Dtype::kF8E4M3, codes.data(), 100, 0.0f,
                               kNoWidenLimit, values.data()));
      EXPECT_TRUE(std::isnan(values[place]));
    }
  });
}

}  // namespace
}  // namespace ringfleet::kernels
