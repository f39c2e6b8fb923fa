// SPDX-License-Identifier: Apache-2.0
#include "cluster/synthetic/weight_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/dtype.h"

namespace ringfleet::cluster {
namespace {

// Table entries that tell their place and their width's bytes apart.
template <typename Code>
CodeTable<Code> MarkedTable() {
  CodeTable<Code> table;
  for (size_t i = 0; i < kDraws; ++i) {
    table[i] = static_cast<Code>(i * 2654435761u + 12345);
  }
  return table;
}

// Outputs of the published generator for the state 0.
TEST(RandomWordTest, IsSplitMix64) {
  EXPECT_EQ(RandomWord(0, 0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(RandomWord(0, 1), 0x6e789e6aa1b965f4u);
  EXPECT_EQ(RandomWord(0, 2), 0x06c45d188009454fu);
}

template <typename Code>
class FillCodesTest : public ::testing::Test {};

using Codes = ::testing::Types<uint8_t, uint16_t, uint32_t>;
TYPED_TEST_SUITE(FillCodesTest, Codes);

TYPED_TEST(FillCodesTest, ElementsAreTheTableAtTheDraws) {
  const CodeTable<TypeParam> table = MarkedTable<TypeParam>();
  std::vector<TypeParam> filled(1001);
  FillCodes(7, table, 0, sizeof(TypeParam) * filled.size(), filled.data());
  for (size_t i = 0; i < filled.size(); ++i) {
    ASSERT_EQ(filled[i], table[Draw(RandomWord(7, i / 4), i % 4)]) << i;
  }
}

TYPED_TEST(FillCodesTest, AnyRangeHasTheSameBytes) {
  const CodeTable<TypeParam> table = MarkedTable<TypeParam>();
  std::string whole(777, '\0');
  FillCodes(7, table, 0, whole.size(), whole.data());
  std::mt19937 random(1);
  for (size_t offset = 0; offset < whole.size(); ++offset) {
    const size_t size = random() % (whole.size() - offset + 1);
    std::string part(size + 2, '#');
    FillCodes(7, table, offset, size, part.data() + 1);
    ASSERT_EQ(part, "#" + whole.substr(offset, size) + "#")
        << size << " bytes at " << offset;
  }
}

TEST(NormalTest, QuantilesInvertTheDistribution) {
  // The density bounds the error of the share by 0.4 times that of x.
  for (double p = 1e-4; p < 1; p += 1e-3) {
    EXPECT_NEAR(std::erfc(-NormalQuantile(p) / std::sqrt(2)) / 2, p, 1.2e-6);
  }
  for (const double p : {1e-6, 1 - 1e-6}) {
    const double x = NormalQuantile(p);
    EXPECT_NEAR(std::erfc(-x / std::sqrt(2)) / 2, p, 1e-8);
  }
  EXPECT_EQ(NormalQuantile(0.5), 0);
  EXPECT_GE(NormalQuantile(0), -6);
  EXPECT_LE(NormalQuantile(1), 6);
}

TEST(NormalTest, Fp8CodesAreFiniteAndReachTheLargest) {
  double sum = 0;
  double squares = 0;
  float largest = 0;
  for (const uint8_t code : F8NormalCodes()) {
    ASSERT_NE(code & 0x7f, 0x7f);
    const float value = kernels::F8E4M3ToFloat(code);
    sum += value;
    squares += value * value;
    largest = std::max(largest, std::abs(value));
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.5);
  // Codes are 2^-4 of their value apart at most, so rounding adds a variance of
  // at most (2^-4)^2 / 12 of the square; the cut tails take 0.1 %.
  EXPECT_NEAR(std::sqrt(squares / kDraws), kF8Deviation, 0.002 * kF8Deviation);
  EXPECT_EQ(largest, 448);
}

// Sums of n products of independent numbers of variance 1 deviate by sqrt(n).
TEST(NormalTest, StreamsAreIndependentOfEachOtherAndOfTheirOwnPast) {
  constexpr size_t kCount = 1 << 18;
  CodeTable<uint32_t> table;
  for (size_t i = 0; i < kDraws; ++i) {
    table[i] = std::bit_cast<uint32_t>(NormalDraws()[i]);
  }
  std::vector<float> a(kCount), b(kCount);
  FillCodes(1, table, 0, sizeof(float) * kCount, a.data());
  FillCodes(2, table, 0, sizeof(float) * kCount, b.data());
  const auto product = [](const std::vector<float>& x,
                          const std::vector<float>& y, size_t lag) {
    double sum = 0;
    for (size_t i = lag; i < kCount; ++i) sum += x[i] * y[i - lag];
    return sum / std::sqrt(kCount);
  };
  EXPECT_NEAR(product(a, a, 0), std::sqrt(kCount), 0.01 * std::sqrt(kCount));
  EXPECT_NEAR(product(a, b, 0), 0, 5);
  for (const size_t lag : {1, 2, 3, 4, 128, 7168}) {
    EXPECT_NEAR(product(a, a, lag), 0, 5) << lag;
  }
}

}  // namespace
}  // namespace ringfleet::cluster
