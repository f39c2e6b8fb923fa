// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/forced_exit.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

namespace ringfleet::cluster {
namespace {

TEST(ForcedExitDeathTest, EndsAProcessThatHangs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ForcedExit forced_exit;
        forced_exit.After(absl::Milliseconds(10));
        while (true) pause();
      },
      ::testing::ExitedWithCode(1), "does not end in order");
}

TEST(ForcedExitDeathTest, LeavesAnOrderlyEndAlone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        { const ForcedExit never_armed; }
        ForcedExit forced_exit;
        forced_exit.After(absl::Hours(1));
        exit(7);
      },
      ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace ringfleet::cluster
