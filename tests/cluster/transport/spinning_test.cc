// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/spinning.h"

#include <gtest/gtest.h>

namespace ringfleet::cluster {
namespace {

TEST(SpinningTest, RanksYieldWhereTheyShareCores) {
  struct Case {
    int ranks;
    int cores;
    bool yields;
  };
  for (const Case& c :
       {Case{1, 1, true}, Case{1, 2, false}, Case{2, 2, false},
        Case{3, 2, true}, Case{16, 16, false}, Case{16, 15, true}}) {
    const Spinning spinning = SpinningOf(Spin::kAuto, c.ranks, c.cores);
    EXPECT_EQ(spinning.time, kSpinTime);
    EXPECT_EQ(spinning.yields, c.yields) << c.ranks << " on " << c.cores;
  }
}

TEST(SpinningTest, WhatTheUserWantsComesFirst) {
  for (const int ranks : {1, 2, 9}) {
    EXPECT_EQ(SpinningOf(Spin::kAlways, ranks, 2).time, kSpinTime);
    EXPECT_FALSE(SpinningOf(Spin::kAlways, ranks, 2).yields);
    EXPECT_EQ(SpinningOf(Spin::kNever, ranks, 2).time, absl::ZeroDuration());
  }
}

}  // namespace
}  // namespace ringfleet::cluster
