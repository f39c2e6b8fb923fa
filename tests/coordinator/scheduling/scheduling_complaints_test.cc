// SPDX-License-Identifier: Apache-2.0
// Situations in which schedulers of other engines failed their users, in
// virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/scheduling/timed_scheduler.h"

namespace ringfleet::coordinator {
namespace {

using std::chrono::milliseconds;

class SchedulingComplaintsTest : public TimedSchedulerTest {
 protected:
  void MakeFor(uint32_t slots, uint32_t blocks, uint32_t context = 65536) {
    MakeWith({.id = 77,
              .slots = slots,
              .context = context,
              .blocks = blocks,
              .reuse = Scheduler::Reuse::kOwners,
              .step_time = milliseconds(120)});
  }

  void SubmitAll(const std::string& name, int count, uint32_t prompt_n,
                 uint32_t max_tokens) {
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE(scheduler_
                      ->Submit(RequestOf(absl::StrCat(name, i), prompt_n,
                                         max_tokens, /*text=*/i + 1))
                      .ok());
    }
  }

  // Times between the tokens of a stream while `steps` run, longest first.
  std::vector<milliseconds> Gaps(const std::string& id, int steps) {
    std::vector<milliseconds> gaps;
    auto last = now_;
    for (int i = 0; i < steps; ++i) {
      const size_t tokens = told_[id].tokens.size();
      Step();
      if (told_[id].tokens.size() == tokens) continue;
      gaps.push_back(std::chrono::duration_cast<milliseconds>(now_ - last));
      last = now_;
    }
    std::sort(gaps.rbegin(), gaps.rend());
    return gaps;
  }
};

TEST_F(SchedulingComplaintsTest, ALongPromptDoesNotStarveStreams) {
  MakeFor(16, 1024);
  SubmitAll("stream", 8, 64, 5000);
  for (int i = 0; i < 20; ++i) Step();
  ASSERT_TRUE(scheduler_->Submit(RequestOf("long", 64'000, 1)).ok());
  EXPECT_LE(Gaps("stream0", 400).front(), milliseconds(120));
}

TEST_F(SchedulingComplaintsTest, StreamsDoNotStarveAPrompt) {
  MakeFor(16, 1024);
  SubmitAll("stream", 15, 64, 5000);
  for (int i = 0; i < 20; ++i) Step();
  const auto submitted = now_;
  ASSERT_TRUE(scheduler_->Submit(RequestOf("new", 2000, 1)).ok());
  RunToEnd("new");
  EXPECT_LE(now_ - submitted, milliseconds(2000 * 3 / 2));
}

TEST_F(SchedulingComplaintsTest, ACacheForPartOfTheNeedRecomputesLittle) {
  // 32 outputs of 1500 need 32 * 13 blocks; six of ten are there.
  MakeFor(32, 250, 2048);
  SubmitAll("job", 32, 100, 1500);
  RunAll();
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(told_[absl::StrCat("job", i)].tokens.size(), 1500u);
  }
  const Scheduler::CacheUse use = scheduler_->cache_use();
  EXPECT_GT(use.preemptions, 0u);
  EXPECT_LE(use.recomputed_positions, 2u * 32 * 1500);
  EXPECT_EQ(use.blocks_used, 0u);
}

TEST_F(SchedulingComplaintsTest, SlightlyTooMuchWorkIsNoStormOfPreemptions) {
  MakeFor(8, 40, 1024);
  SubmitAll("fits", 5, 100, 800);
  const auto begin = now_;
  RunAll();
  const auto fits = now_ - begin;
  MakeFor(8, 40, 1024);
  const auto before = now_;
  SubmitAll("over", 40, 100, 800);
  RunAll();
  // Eight times the work of a full cache.
  EXPECT_LE(now_ - before, fits * 8 * 10 / 7);
}

TEST_F(SchedulingComplaintsTest, AHighPriorityIsNotPreemptedForALowOne) {
  MakeFor(8, 16, 1024);
  auto high = RequestOf("high", 100, 900, 1);
  high->priority = -1;
  ASSERT_TRUE(scheduler_->Submit(high).ok());
  for (int i = 0; i < 3; ++i) {
    auto low = RequestOf(absl::StrCat("low", i), 100, 900, i + 2);
    low->priority = 1;
    ASSERT_TRUE(scheduler_->Submit(low).ok());
  }
  RunAll();
  EXPECT_TRUE(told_["high"].waits.empty());
  EXPECT_EQ(told_["high"].runs, 1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(told_[absl::StrCat("low", i)].tokens.size(), 900u);
  }
}

TEST_F(SchedulingComplaintsTest, APromptThatCannotFitFailsAndOthersGoOn) {
  MakeFor(4, 16, 2048);
  EXPECT_FALSE(scheduler_->Submit(RequestOf("too long", 2049, 1)).ok());
  ASSERT_TRUE(scheduler_->Submit(RequestOf("fits", 2048, 1)).ok());
  ASSERT_TRUE(scheduler_->Submit(RequestOf("short", 10, 5, 1)).ok());
  RunAll();
  EXPECT_EQ(told_["fits"].tokens.size(), 1u);
  EXPECT_EQ(told_["short"].tokens.size(), 5u);
}

TEST_F(SchedulingComplaintsTest, ALoneOutputBeyondTheCacheEndsWithLength) {
  MakeFor(4, 4, 512);
  ASSERT_TRUE(
      scheduler_->Submit(RequestOf("grows", 100, kUnlimitedTokens)).ok());
  RunAll();
  EXPECT_EQ(told_["grows"].reason, kLength);
  EXPECT_EQ(told_["grows"].tokens.size(), 512u - 100 + 1);
}

TEST_F(SchedulingComplaintsTest, TwoPrefixesInTurnsBothStay) {
  MakeFor(1, 48, 4096);
  uint64_t asked = 0;
  for (int round = 0; round < 3; ++round) {
    if (round == 1) asked = scheduler_->cache_use().prefix_queries;
    for (const uint32_t text : {1, 2}) {
      auto request =
          RequestOf(absl::StrCat(text, " in ", round), 2048, 10, text);
      for (uint32_t i = 0; i < 16; ++i) {
        request->prompt_ids.push_back(100'000 * (round + 1) + i);
      }
      ASSERT_TRUE(scheduler_->Submit(request).ok());
      RunToEnd(request->id);
    }
  }
  const Scheduler::CacheUse use = scheduler_->cache_use();
  EXPECT_GE(static_cast<double>(use.prefix_hits),
            0.95 * static_cast<double>(use.prefix_queries - asked));
}

TEST_F(SchedulingComplaintsTest, ACancelledPromptFreesItsBlocksAtOnce) {
  MakeFor(2, 64, 8192);
  ASSERT_TRUE(scheduler_->Submit(RequestOf("cancelled", 8000, 10)).ok());
  Step();
  ASSERT_TRUE(scheduler_->Cancel("cancelled").ok());
  Step();
  EXPECT_EQ(scheduler_->cache_use().blocks_used, 0u);
  EXPECT_FALSE(scheduler_->NextPlan().has_value());
}

TEST_F(SchedulingComplaintsTest, RequestsThatGaveUpDelayNobody) {
  MakeFor(4, 256, 4096);
  for (int i = 0; i < 200; ++i) {
    auto request = RequestOf(absl::StrCat("late", i), 1000, 200, i + 1);
    request->deadline = cluster::Deadline(now_ + milliseconds(500));
    ASSERT_TRUE(scheduler_->Submit(request).ok());
  }
  Step();
  now_ += milliseconds(500);
  scheduler_->Expire(/*loading=*/false, absl::InfiniteDuration(),
                     absl::OkStatus());
  const auto submitted = now_;
  ASSERT_TRUE(scheduler_->Submit(RequestOf("next", 20, 5)).ok());
  RunToEnd("next");
  EXPECT_LE(now_ - submitted, milliseconds(5000));
  EXPECT_LE(evaluated(), 2u * 768 + 20);
}

}  // namespace
}  // namespace ringfleet::coordinator
