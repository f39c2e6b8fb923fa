// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/activations.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/thread_pool.h"
#include "tests/kernels/each_isa.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::kernels {
namespace {

constexpr Activations::Form kInt8 = Activations::Form::kInt8;

// One group at a time, as QuantizeInt8 does, with plain sums.
void ExpectQuantized(const Activations& x, size_t row, const float* values) {
  const size_t columns = x.columns();
  for (size_t group = 0; group < x.groups(); ++group) {
    const size_t first = group * kActivationGroup;
    const size_t count = std::min(kActivationGroup, columns - first);
    int8_t want[kActivationGroup] = {};
    const float scale = QuantizeInt8(values + first, count, want);
    const float got = x.Scales(row)[group];
    EXPECT_TRUE(got == scale || (std::isnan(got) && std::isnan(scale)))
        << got << ", want " << scale << " in group " << group;
    const int8_t* const codes = x.Codes(row) + first;
    EXPECT_TRUE(std::equal(want, want + kActivationGroup, codes))
        << "group " << group;
    for (size_t i = 0; i < Activations::kSumsPerGroup; ++i) {
      const int8_t* const part = want + i * kInt4Group;
      EXPECT_EQ(x.Sums(row)[group * Activations::kSumsPerGroup + i],
                std::accumulate(part, part + kInt4Group, 0));
    }
    EXPECT_EQ(x.Biases(row)[group],
              128 * std::accumulate(want, want + kActivationGroup, 0));
  }
}

TEST(ActivationsTest, RowsAreQuantisedInGroups) {
  ThreadPool pool(1);
  for (const size_t columns : {1, 31, 63, 64, 65, 96, 127, 128, 200, 1536}) {
    SCOPED_TRACE(columns);
    constexpr size_t kRows = 3;
    const size_t stride = columns + 5;
    std::vector<float> values = RandomFloats(kRows * stride, 3, -20, 20);
    // Halves, which round to even, and the ends of the range.
    for (size_t i = 0; i < columns; ++i) {
      values[stride + i] = static_cast<float>(i % 255) / 2 - 63.5f;
    }
    ForEachIsa([&] {
      Activations x;
      x.Assign(kInt8, values.data(), kRows, columns, stride, pool);
      for (size_t row = 0; row < kRows; ++row) {
        ExpectQuantized(x, row, values.data() + row * stride);
      }
    });
  }
}

TEST(ActivationsTest, GroupsWithoutAScaleHaveNoCodes) {
  constexpr size_t kColumns = 7 * kActivationGroup + 10;
  std::vector<float> values = RandomFloats(kColumns, 4);
  std::fill_n(values.begin() + kActivationGroup, kActivationGroup, 0.0f);
  std::fill_n(values.begin() + 2 * kActivationGroup, kActivationGroup,
              -kSmallestQuantized / 2);
  values[3 * kActivationGroup + 63] = std::numeric_limits<float>::quiet_NaN();
  values[4 * kActivationGroup] = -std::numeric_limits<float>::infinity();
  values[5 * kActivationGroup + 7] = std::numeric_limits<float>::max();
  values[6 * kActivationGroup + 7] = kSmallestQuantized;
  values[kColumns - 1] = std::numeric_limits<float>::infinity();
  ForEachIsa([&] {
    Activations x;
    x.Reshape(kInt8, 1, kColumns);
    x.SetRow(0, values.data());
    ExpectQuantized(x, 0, values.data());
  });
}

// Whatever stood there before.
TEST(ActivationsTest, GroupsAndStoredRowsGiveTheSameRow) {
  constexpr size_t kColumns = 3 * kActivationGroup + 17;
  const std::vector<float> values = RandomFloats(kColumns, 5);
  ForEachIsa([&] {
    Activations whole;
    whole.Reshape(kInt8, 1, kColumns);
    whole.SetRow(0, values.data());
    std::string stored(whole.StoredRowBytes(), 0);
    whole.StoreRow(0, stored.data());

    Activations x;
    x.Reshape(kInt8, 2, kColumns);
    const std::vector<float> before = RandomFloats(kColumns, 6, -9, 9);
    for (const size_t row : {0, 1}) x.SetRow(row, before.data());
    for (size_t group = x.groups(); group-- > 0;) {
      x.SetGroup(0, group, values.data() + group * kActivationGroup);
    }
    x.LoadRow(1, stored.data());
    ExpectQuantized(x, 0, values.data());
    ExpectQuantized(x, 1, values.data());
  });
}

}  // namespace
}  // namespace ringfleet::kernels
