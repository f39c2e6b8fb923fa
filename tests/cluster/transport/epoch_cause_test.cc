// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/epoch_cause.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace ringfleet::cluster {
namespace {

TEST(EpochCauseTest, KeepsTheFirstRecord) {
  EpochCause cause;
  EXPECT_FALSE(cause.aborted());
  EXPECT_TRUE(cause.status().ok());
  EXPECT_TRUE(cause.Set({.status = absl::UnavailableError("lost rank 2"),
                         .origin = "rank 0: lost rank 2",
                         .suspect = 2}));
  EXPECT_FALSE(cause.Set({.status = absl::AbortedError("later"),
                          .origin = "rank 1: later",
                          .suspect = 1}));
  EXPECT_TRUE(cause.aborted());
  EXPECT_EQ(cause.status(), absl::UnavailableError("lost rank 2"));
  EXPECT_EQ(cause.Get().origin, "rank 0: lost rank 2");
  EXPECT_EQ(cause.Get().suspect, 2);
}

TEST(EpochCauseTest, OneOfManyThreadsIsFirst) {
  EpochCause cause;
  std::atomic<int> first{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 8; ++rank) {
    threads.emplace_back([&, rank] {
      const std::string text = absl::StrCat("rank ", rank);
      first += cause.Set({.status = absl::AbortedError(text),
                          .origin = text,
                          .suspect = rank});
      // Whoever sees the abort sees a whole record.
      const EpochCause::Record seen = cause.Get();
      EXPECT_EQ(seen.origin, absl::StrCat("rank ", seen.suspect));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(first, 1);
}

}  // namespace
}  // namespace ringfleet::cluster
