// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/clock_offset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace ringfleet::coordinator {
namespace {

// A clock here and one that is ahead there, and ways between them that take
// time.
class TwoClocks {
 public:
  explicit TwoClocks(int64_t ahead) : ahead_(ahead) {}

  // The next exchange takes `there` and `back`; the last goes on for ever.
  void AddWay(int64_t there, int64_t back) { ways_.push_back({there, back}); }

  absl::StatusOr<ClockOffset> Measure() {
    return MeasureClockOffset([this] { return now_; },
                              [this]() -> absl::StatusOr<int64_t> {
                                const Way way =
                                    ways_[std::min(next_++, ways_.size() - 1)];
                                now_ += way.there;
                                const int64_t read = now_ + ahead_;
                                now_ += way.back;
                                return read;
                              });
  }

 private:
  struct Way {
    int64_t there;
    int64_t back;
  };
  const int64_t ahead_;
  int64_t now_ = 1'000'000'007;
  std::vector<Way> ways_;
  size_t next_ = 0;
};

TEST(ClockOffsetTest, EqualWaysGiveTheExactOffset) {
  for (const int64_t ahead : {int64_t{0}, int64_t{123456789}, int64_t{-42}}) {
    TwoClocks clocks(ahead);
    clocks.AddWay(300, 300);
    const auto offset = clocks.Measure();
    ASSERT_TRUE(offset.ok()) << offset.status();
    EXPECT_EQ(offset->offset_ns, ahead);
    EXPECT_EQ(offset->error_ns, 300);
  }
}

TEST(ClockOffsetTest, TheShortestExchangeDecides) {
  TwoClocks clocks(5000);
  clocks.AddWay(1'000'000, 10);  // Connects.
  clocks.AddWay(900, 100);
  clocks.AddWay(70, 30);
  clocks.AddWay(10, 2000);
  const auto offset = clocks.Measure();
  ASSERT_TRUE(offset.ok()) << offset.status();
  EXPECT_EQ(offset->error_ns, 50);
  EXPECT_EQ(offset->offset_ns, 5020);
}

TEST(ClockOffsetTest, TheErrorIsABoundHoweverTheWaysDiffer) {
  for (int64_t there = 0; there <= 1000; there += 125) {
    TwoClocks clocks(-777);
    clocks.AddWay(there, 1000 - there);
    const auto offset = clocks.Measure();
    ASSERT_TRUE(offset.ok()) << offset.status();
    EXPECT_LE(std::abs(offset->offset_ns + 777), offset->error_ns);
    EXPECT_EQ(offset->error_ns, 500);
  }
}

TEST(ClockOffsetTest, AnErrorOfTheOtherSideIsReturned) {
  EXPECT_EQ(MeasureClockOffset([] { return int64_t{0}; },
                               []() -> absl::StatusOr<int64_t> {
                                 return absl::UnavailableError("gone");
                               })
                .status(),
            absl::UnavailableError("gone"));
}

TEST(ClockOffsetTest, DriftIsSharedOutEvenly) {
  // Theirs gains 1000 ns in the 10 s between.
  const ClockOffset before = {.offset_ns = 500, .at_ns = 0};
  const ClockOffset after = {.offset_ns = 1500, .at_ns = 10'000'000'000};
  EXPECT_EQ(ToOurClock(500, before, after), 0);
  EXPECT_EQ(ToOurClock(10'000'001'500, before, after), 10'000'000'000);
  EXPECT_EQ(ToOurClock(5'000'001'000, before, after), 5'000'000'000);
}

TEST(ClockOffsetTest, WhatOneOffsetExplainsIsNoDrift) {
  const ClockOffset before = {.offset_ns = 500, .error_ns = 400, .at_ns = 0};
  const ClockOffset after = {
      .offset_ns = 1100, .error_ns = 200, .at_ns = 10'000};
  for (const int64_t theirs : {0, 700, 50'000}) {
    EXPECT_EQ(ToOurClock(theirs, before, after), theirs - 1100);
    EXPECT_EQ(ToOurClock(theirs, before, before), theirs - 500);
  }
}

}  // namespace
}  // namespace ringfleet::coordinator
