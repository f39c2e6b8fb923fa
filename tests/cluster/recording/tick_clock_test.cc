// SPDX-License-Identifier: Apache-2.0
#include "cluster/recording/tick_clock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

namespace ringfleet::cluster {
namespace {

using Clock = Deadline::Clock;
using std::chrono::microseconds;

TEST(TickClockTest, TicksLieWhereTheSystemsClockSays) {
  struct Moment {
    Clock::time_point before;
    uint64_t ticks;
    Clock::time_point after;
  };
  const Clock::time_point begin = Clock::now();
  const TickClock clock;
  const Clock::duration beginning = Clock::now() - begin;
  std::vector<Moment> moments;
  for (int i = 0; i < 100; ++i) {
    Moment moment;
    moment.before = Clock::now();
    moment.ticks = Ticks();
    moment.after = Clock::now();
    moments.push_back(moment);
    std::this_thread::sleep_for(microseconds(500));
  }
  const Clock::time_point end = Clock::now();
  const TickClock::Scale scale = clock.Now();
  const Clock::duration ending = Clock::now() - end;

  // At both ends clock and counter are read one after the other, and what
  // passes between moves the scale there. In between the system may change the
  // rate of its clock by 500 millionths (adjtimex(2)).
  const Clock::duration slack =
      std::max(beginning, ending) + (end - begin) / 2000 + microseconds(1);
  for (const Moment& moment : moments) {
    const Clock::time_point time = scale.TimeOf(moment.ticks);
    EXPECT_GE(time, moment.before - slack);
    EXPECT_LE(time, moment.after + slack);
  }
}

TEST(TickClockTest, KeepsTheOrderOfTicks) {
  const TickClock clock;
  std::vector<uint64_t> ticks;
  for (int i = 0; i < 1000; ++i) ticks.push_back(Ticks());
  const TickClock::Scale scale = clock.Now();
  for (size_t i = 1; i < ticks.size(); ++i) {
    ASSERT_LE(ticks[i - 1], ticks[i]);
    ASSERT_LE(scale.TimeOf(ticks[i - 1]), scale.TimeOf(ticks[i]));
  }
}

// However little has passed to tell the counter's rate by.
TEST(TickClockTest, TicksSinceTheConstructionLieBehindIt) {
  for (int i = 0; i < 1000; ++i) {
    const Clock::time_point before = Clock::now();
    const TickClock clock;
    const uint64_t ticks = Ticks();
    const Clock::time_point time = clock.Now().TimeOf(ticks);
    ASSERT_GE(time, before);
    ASSERT_LE(time, Clock::now());
  }
}

}  // namespace
}  // namespace ringfleet::cluster
