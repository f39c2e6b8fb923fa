// SPDX-License-Identifier: Apache-2.0
#include "kernels/read_bandwidth.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace ringfleet::kernels {
namespace {

// A wrong sum would mean that something was not read, or read twice.
TEST(SumWordsTest, ReadsEveryWordOnceOnEveryTarget) {
  std::vector<uint64_t> words(300);
  uint64_t word = 1;
  for (uint64_t& w : words) w = word *= 6364136223846793005u;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    uint64_t sum = 0;
    for (size_t count = 0; count + 1 < words.size(); ++count) {
      ASSERT_EQ(SumWords(words.data() + 1, count), sum) << count;
      sum += words[1 + count];
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace
}  // namespace ringfleet::kernels
