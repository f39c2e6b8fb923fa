// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/growth.h"

#include <chrono>

#include "gtest/gtest.h"

namespace ringfleet::coordinator {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using Turn = HandoverPace::Turn;

constexpr HandoverPace::TimePoint kOpened = {};

HandoverPace PaceAfter(HandoverPace::TimePoint loaded) {
  return HandoverPace(kOpened, loaded, absl::Seconds(30), absl::Minutes(5));
}

TEST(HandoverPaceTest, AQuietEpochEndsAtOnce) {
  const auto loaded = kOpened + minutes(60);
  const HandoverPace pace = PaceAfter(loaded);
  EXPECT_EQ(pace.At(loaded, /*quiet=*/true), Turn::kEnd);
  EXPECT_EQ(pace.At(loaded + seconds(45), /*quiet=*/true), Turn::kEnd);
}

TEST(HandoverPaceTest, ARunningSequenceIsAwaitedAsLongAsItsReplayMayTake) {
  // The epoch has served for less than a hold, for two minutes, for an hour.
  for (const auto& [served, longest] : {std::pair(seconds(1), seconds(30)),
                                        {seconds(120), seconds(120)},
                                        {seconds(3600), seconds(300)}}) {
    const auto loaded = kOpened + served;
    const HandoverPace pace = PaceAfter(loaded);
    EXPECT_NE(pace.At(loaded + longest - seconds(1), false), Turn::kEnd);
    EXPECT_EQ(pace.At(loaded + longest, false), Turn::kEnd);
    EXPECT_EQ(pace.At(loaded + minutes(60), false), Turn::kEnd);
  }
}

TEST(HandoverPaceTest, NewRequestsAreHeldAndLetInByTurns) {
  const auto loaded = kOpened + minutes(60);
  const HandoverPace pace = PaceAfter(loaded);
  for (const auto& [after, turn] : {std::pair(0, Turn::kHold),
                                    {29, Turn::kHold},
                                    {30, Turn::kLetIn},
                                    {59, Turn::kLetIn},
                                    {60, Turn::kHold},
                                    {299, Turn::kLetIn}}) {
    EXPECT_EQ(pace.At(loaded + seconds(after), false), turn) << after;
  }
}

}  // namespace
}  // namespace ringfleet::coordinator
