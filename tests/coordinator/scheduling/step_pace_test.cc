// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/step_pace.h"

#include <gtest/gtest.h>

namespace ringfleet::coordinator {
namespace {

using std::chrono::milliseconds;

TEST(StepPaceTest, RowsFillWhatDecodesLeave) {
  StepPace pace;
  EXPECT_EQ(pace.RowsWithin(milliseconds(400)), StepPace::kUnmeasuredRows);
  EXPECT_EQ(pace.TimeOf(100).count(), 0);
  pace.Observe(milliseconds(100), 0);
  pace.Observe(milliseconds(300), 100);  // 2 ms a row.
  EXPECT_EQ(pace.RowsWithin(milliseconds(401)), 150u);
  EXPECT_EQ(pace.TimeOf(50), milliseconds(100));
  EXPECT_EQ(pace.RowsWithin(milliseconds(50)), StepPace::kLeastRows);
}

TEST(StepPaceTest, FollowsAFleetThatBecomesSlower) {
  StepPace pace;
  pace.Observe(milliseconds(100), 0);
  pace.Observe(milliseconds(200), 100);
  for (int i = 0; i < 30; ++i) {
    pace.Observe(milliseconds(200), 0);
    pace.Observe(milliseconds(600), 100);
  }
  EXPECT_NEAR(pace.RowsWithin(milliseconds(400)), 50, 2);
}

TEST(StepPaceTest, FewRowsAndNoTimeSayNothing) {
  StepPace pace;
  pace.Observe(milliseconds(100), 3);
  pace.Observe(milliseconds(0), 300);
  EXPECT_EQ(pace.RowsWithin(milliseconds(400)), StepPace::kUnmeasuredRows);
}

}  // namespace
}  // namespace ringfleet::coordinator
