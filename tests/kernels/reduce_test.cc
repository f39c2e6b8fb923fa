// SPDX-License-Identifier: Apache-2.0
#include "kernels/reduce.h"

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "kernels/dtype.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::kernels {
namespace {

// Runs `body` on every instruction set that was compiled and that this
// machine has.
void OnEveryTarget(const std::function<void()>& body) {
  const auto targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_FALSE(targets.empty());
  for (const int64_t target : targets) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) {
    // Which of two NaNs a sum keeps is open.
    bits.push_back(std::bit_cast<uint32_t>(std::isnan(value) ? NAN : value));
  }
  return bits;
}

// memcpy must not be given the null pointers of empty vectors.
void Copy(const void* from, size_t bytes, void* to) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

std::vector<uint32_t> ExactBits(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  Copy(values.data(), 4 * values.size(), bits.data());
  return bits;
}

// Zeros, subnormals, ties of the bf16 rounding to both sides, the largest
// numbers, those that round to infinity, infinities and NaNs of both kinds.
const std::vector<float>& SpecialValues() {
  static const auto* const values = [] {
    auto* list = new std::vector<float>;
    for (const uint32_t bits :
         {0x00000000u, 0x00000001u, 0x00007fffu, 0x00008000u, 0x00008001u,
          0x00018000u, 0x007fffffu, 0x00800000u, 0x3f800000u, 0x3f808000u,
          0x3f808001u, 0x3f818000u, 0x3f817fffu, 0x42fe0000u, 0x7f7f7fffu,
          0x7f7f8000u, 0x7f7fffffu, 0x7f800000u, 0x7f800001u, 0x7f80ffffu,
          0x7fbfffffu, 0x7fc00000u, 0x7fffffffu}) {
      list->push_back(std::bit_cast<float>(bits));
      list->push_back(std::bit_cast<float>(bits | 0x80000000u));
    }
    return list;
  }();
  return *values;
}

// Finite values of many magnitudes, or any bits with the special ones among
// them.
std::vector<float> Values(size_t count, uint32_t seed, bool finite) {
  std::mt19937 generator(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    const uint32_t bits = generator();
    if (finite) {
      value =
          std::ldexp(static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f,
                     static_cast<int>(generator() % 41) - 20);
    } else if (generator() % 3 == 0) {
      value = SpecialValues()[bits % SpecialValues().size()];
    } else {
      value = std::bit_cast<float>(bits);
    }
  }
  return values;
}

// Calls body(count, offset, finite) with every count of 0 to 300 at some byte
// offsets from an aligned address, and with some counts at all of them.
void ForEachCase(const std::function<void(size_t, size_t, bool)>& body) {
  for (const bool finite : {true, false}) {
    for (size_t count = 0; count <= 300; ++count) {
      for (size_t offset = count % 2; offset < 4; offset += 2) {
        body(count, offset, finite);
      }
    }
    for (const size_t count : {1, 63, 129, 300}) {
      for (size_t offset = 0; offset < 64; ++offset) {
        body(count, offset, finite);
      }
    }
  }
}

// `size` bytes at an offset; a sanitizer notices what touches more.
struct WireBytes {
  WireBytes(size_t size, size_t offset) : storage(size + offset), at(offset) {}
  char* data() { return storage.data() + at; }
  std::vector<char> storage;
  size_t at;
};

TEST(ReduceTest, AddF32AddsUnalignedElements) {
  OnEveryTarget([] {
    ForEachCase([](size_t count, size_t offset, bool finite) {
      const std::vector<float> values = Values(count, 1, finite);
      std::vector<float> sum = Values(count, 2, finite);
      std::vector<float> want(count);
      for (size_t i = 0; i < count; ++i) want[i] = sum[i] + values[i];
      WireBytes bytes(4 * count, offset);
      Copy(values.data(), 4 * count, bytes.data());
      AddF32(bytes.data(), count, sum.data(), sum.data());
      ASSERT_EQ(Bits(sum), Bits(want)) << count << " at " << offset;
    });
  });
}

TEST(ReduceTest, Bf16RoundsAsSingleValuesDo) {
  OnEveryTarget([] {
    ForEachCase([](size_t count, size_t offset, bool finite) {
      const std::vector<float> values = Values(count, 3, finite);
      std::vector<uint16_t> want(count);
      for (size_t i = 0; i < count; ++i) want[i] = FloatToBf16(values[i]);
      WireBytes bytes(2 * count, offset);
      EncodeBf16(values.data(), count, bytes.data());
      std::vector<uint16_t> got(count);
      Copy(bytes.data(), 2 * count, got.data());
      ASSERT_EQ(got, want) << count << " at " << offset;
    });
    // Every exponent, sign and upper mantissa, with lower halves around the
    // tie.
    std::vector<float> values;
    std::vector<uint16_t> want;
    for (uint32_t upper = 0; upper < 65536; ++upper) {
      for (const uint32_t lower :
           {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
        values.push_back(std::bit_cast<float>(upper << 16 | lower));
        want.push_back(FloatToBf16(values.back()));
      }
    }
    std::vector<uint16_t> got(values.size());
    EncodeBf16(values.data(), values.size(),
               reinterpret_cast<char*>(got.data()));
    EXPECT_TRUE(got == want);
  });
}

TEST(ReduceTest, Bf16DecodesAndAddsUnalignedElements) {
  OnEveryTarget([] {
    ForEachCase([](size_t count, size_t offset, bool finite) {
      std::vector<float> values = Values(count, 4, finite);
      WireBytes bytes(2 * count, offset);
      for (size_t i = 0; i < count; ++i) {
        const uint16_t element = FloatToBf16(values[i]);
        std::memcpy(bytes.data() + 2 * i, &element, 2);
        values[i] = Bf16ToFloat(element);
      }
      std::vector<float> got(count);
      DecodeBf16(bytes.data(), count, got.data());
      ASSERT_EQ(ExactBits(got), ExactBits(values)) << count << " at " << offset;

      std::vector<float> sum = Values(count, 5, finite);
      std::vector<float> want(count);
      for (size_t i = 0; i < count; ++i) want[i] = sum[i] + values[i];
      AddBf16(bytes.data(), count, sum.data(), sum.data());
      ASSERT_EQ(Bits(sum), Bits(want)) << count << " at " << offset;
    });
  });
}

// The definition in reduce.h, value by value.
float ReferenceInt8Group(const std::vector<float>& values,
                         std::vector<int8_t>& codes) {
  codes.assign(values.size(), 0);
  float max = 0;
  for (const float value : values) {
    if (!std::isfinite(value)) return std::numeric_limits<float>::quiet_NaN();
    max = std::fmax(max, std::fabs(value));
  }
  if (max == 0 || std::isinf(127.0f / max)) return 0;
  const float inverse = 127.0f / max;
  for (size_t i = 0; i < values.size(); ++i) {
    codes[i] = static_cast<int8_t>(
        std::fmin(127, std::fmax(-127, std::nearbyint(values[i] * inverse))));
  }
  return max / 127.0f;
}

TEST(ReduceTest, Int8GroupsEncodeAsDefined) {
  OnEveryTarget([] {
    for (const bool finite : {true, false}) {
      for (size_t count = 0; count <= kInt8GroupElements; ++count) {
        for (size_t offset = 0; offset < 4; ++offset) {
          const std::vector<float> values = Values(count, 6 + offset, finite);
          std::vector<int8_t> want;
          const float want_scale = ReferenceInt8Group(values, want);
          WireBytes bytes(count, offset);
          const float scale =
              EncodeInt8Group(values.data(), count, bytes.data());
          EXPECT_EQ(std::bit_cast<uint32_t>(scale),
                    std::bit_cast<uint32_t>(want_scale));
          std::vector<int8_t> got(count);
          Copy(bytes.data(), count, got.data());
          ASSERT_EQ(got, want) << count << " at " << offset;
        }
      }
    }
  });
}

TEST(ReduceTest, Int8RoundsTiesToEvenAndReachesBothEnds) {
  OnEveryTarget([] {
    // The largest is 127, so the scale is 1 and the values are their codes.
    std::vector<float> values = {127, -127, 0.5, -0.5, 1.5, -1.5, 2.5, 126.5};
    const std::vector<int8_t> want = {127, -127, 0, 0, 2, -2, 2, 126};
    for (int lane = 0; lane < 16; ++lane) {
      std::vector<int8_t> got(values.size());
      EXPECT_EQ(EncodeInt8Group(values.data(), values.size(),
                                reinterpret_cast<char*>(got.data())),
                1.0f);
      got.resize(want.size());
      EXPECT_EQ(got, want);
      values.push_back(0);  // Also by full vectors.
    }
  });
}

TEST(ReduceTest, Int8GroupsWithoutAScaleDecodeToZeroOrNan) {
  OnEveryTarget([] {
    const auto encode = [](float value, size_t at) {
      std::vector<float> values(kInt8GroupElements, value == 0 ? 0 : 1e-38f);
      values[at] = value;
      std::vector<char> codes(values.size(), 1);
      const float scale =
          EncodeInt8Group(values.data(), values.size(), codes.data());
      EXPECT_EQ(codes, std::vector<char>(values.size(), 0));
      return scale;
    };
    for (const size_t at : {0, 77, 127}) {
      EXPECT_EQ(encode(0, at), 0.0f);
      EXPECT_EQ(encode(FLT_TRUE_MIN, at), 0.0f);
      EXPECT_EQ(encode(-FLT_MIN, at), 0.0f);
      for (const float fault : {INFINITY, -INFINITY, NAN, -NAN}) {
        const float scale = encode(fault, at);
        EXPECT_TRUE(std::isnan(scale));
        const std::vector<char> codes(40, 0);
        std::vector<float> out(40);
        DecodeInt8Group(codes.data(), codes.size(), scale, out.data());
        for (const float value : out) EXPECT_TRUE(std::isnan(value));
      }
    }
    // The smallest maximum that has a scale, 127 / FLT_MAX rounded up.
    const float smallest = std::nextafter(127 / FLT_MAX, 1.0f);
    char code = 0;
    EXPECT_GT(EncodeInt8Group(&smallest, 1, &code), 0.0f);
    EXPECT_EQ(code, 127);
  });
}

TEST(ReduceTest, Int8DecodesAndAddsUnalignedElements) {
  OnEveryTarget([] {
    ForEachCase([](size_t count, size_t offset, bool finite) {
      std::mt19937 generator(static_cast<uint32_t>(count));
      WireBytes bytes(count, offset);
      const float scale =
          finite ? 0.0123456f : SpecialValues()[count % SpecialValues().size()];
      std::vector<float> product(count);
      for (size_t i = 0; i < count; ++i) {
        const auto code = static_cast<int8_t>(generator());
        bytes.data()[i] = static_cast<char>(code);
        product[i] = static_cast<float>(code) * scale;
      }
      std::vector<float> got(count);
      DecodeInt8Group(bytes.data(), count, scale, got.data());
      ASSERT_EQ(Bits(got), Bits(product)) << count << " at " << offset;

      std::vector<float> sum = Values(count, 7, finite);
      std::vector<float> want(count);
      for (size_t i = 0; i < count; ++i) want[i] = sum[i] + product[i];
      AddInt8Group(bytes.data(), count, scale, sum.data(), sum.data());
      ASSERT_EQ(Bits(sum), Bits(want)) << count << " at " << offset;
    });
  });
}

// In units of the scale s = fl(m / 127): the two roundings before the code is
// chosen move it by at most 127 Gamma(2), the choice by 1/2, and the scale and
// the product of the decoding by 127 Gamma(2) again.
TEST(ReduceTest, Int8DecodesWithinHalfAScale) {
  std::vector<char> codes(kInt8GroupElements);
  std::vector<float> decoded(kInt8GroupElements);
  for (uint32_t seed = 0; seed < 1000; ++seed) {
    const std::vector<float> values = RandomFloats(kInt8GroupElements, seed);
    const float scale =
        EncodeInt8Group(values.data(), values.size(), codes.data());
    DecodeInt8Group(codes.data(), codes.size(), scale, decoded.data());
    const double bound =
        static_cast<double>(scale) * (1 + Gamma(1)) * (0.5 + 127 * Gamma(4));
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_LE(std::fabs(static_cast<double>(values[i]) - decoded[i]), bound);
    }
  }
}

}  // namespace
}  // namespace ringfleet::kernels
