// SPDX-License-Identifier: Apache-2.0
#include "cluster/recording/seq_locked.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>

namespace ringfleet::cluster {
namespace {

struct Numbers {
  uint64_t values[7] = {};
  uint8_t last = 0;
};

TEST(SeqLockedTest, BeginsWithZerosAndKeepsWhatWasStored) {
  SeqLocked<Numbers> locked;
  EXPECT_EQ(locked.Load().values[6], 0u);
  Numbers numbers{.last = 9};
  numbers.values[3] = 5;
  locked.Store(numbers);
  EXPECT_EQ(locked.Load().values[3], 5u);
  EXPECT_EQ(locked.Load().last, 9);
}

TEST(SeqLockedTest, AReaderSeesWholeValuesInTheirOrder) {
  constexpr uint64_t kStores = 200000;
  SeqLocked<Numbers> locked;
  std::thread writing([&locked] {
    for (uint64_t i = 1; i <= kStores; ++i) {
      Numbers numbers{.last = static_cast<uint8_t>(i)};
      for (uint64_t& value : numbers.values) value = i;
      locked.Store(numbers);
    }
  });
  uint64_t seen = 0;
  while (seen < kStores) {
    const Numbers numbers = locked.Load();
    for (const uint64_t value : numbers.values) {
      ASSERT_EQ(value, numbers.values[0]);
    }
    ASSERT_EQ(numbers.last, static_cast<uint8_t>(numbers.values[0]));
    ASSERT_GE(numbers.values[0], seen);
    seen = numbers.values[0];
  }
  writing.join();
}

}  // namespace
}  // namespace ringfleet::cluster
