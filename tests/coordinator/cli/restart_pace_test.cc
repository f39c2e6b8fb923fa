// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/restart_pace.h"

#include <chrono>

#include "gtest/gtest.h"

namespace ringfleet::coordinator::cli {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

TEST(RestartPaceTest, PausesDoubleUntilAWorkerIsGivenUp) {
  RestartPace pace;
  RestartPace::TimePoint now = {};
  for (const int ms : {100, 200, 400, 800}) {
    EXPECT_EQ(pace.NoteDeath(now += seconds(1)), absl::Milliseconds(ms));
  }
  EXPECT_EQ(pace.NoteDeath(now += seconds(1)), std::nullopt);
}

TEST(RestartPaceTest, DeathsOutsideTheWindowDoNotCount) {
  RestartPace pace;
  RestartPace::TimePoint now = {};
  // Four of them lie within any ten minutes.
  for (const int ms : {100, 200, 400, 800, 800, 800, 800}) {
    EXPECT_EQ(pace.NoteDeath(now), absl::Milliseconds(ms));
    now += minutes(3);
  }
  EXPECT_EQ(pace.NoteDeath(now + minutes(10)), absl::Milliseconds(100));
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
