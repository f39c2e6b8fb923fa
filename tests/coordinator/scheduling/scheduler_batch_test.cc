// SPDX-License-Identifier: Apache-2.0
// Batches beside interactive sequences, in virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/scheduling/timed_scheduler.h"

namespace ringfleet::coordinator {
namespace {

using std::chrono::milliseconds;
using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class SchedulerBatchTest : public TimedSchedulerTest {
 protected:
  SchedulerBatchTest() {
    // Each further row of a step touches fewer new experts.
    step_ms_ = [](const Rows& rows) {
      return 20 + 12 * std::sqrt(rows.decodes + rows.replays) + rows.prompts;
    };
    plans_ahead_ = kMaxPlansInFlight;
  }

  void MakeLimited(std::optional<milliseconds> batch_step, uint32_t slots = 32,
                   uint32_t blocks = 1024) {
    MakeWith({.id = 77,
              .slots = slots,
              .context = 4096,
              .blocks = blocks,
              .reuse = Scheduler::Reuse::kOwners,
              .step_time = milliseconds(120),
              .batch_step_time = batch_step});
  }

  void SubmitMany(const std::string& name, int count, uint32_t prompt_n,
                  uint32_t max_tokens, int priority) {
    for (int i = 0; i < count; ++i) {
      auto request = RequestOf(absl::StrCat(name, i), prompt_n, max_tokens,
                               /*text=*/100 * name.size() + i);
      request->priority = priority;
      ASSERT_TRUE(scheduler_->Submit(request).ok());
    }
  }

  // Runs streams for `steps`, after their prompts. Returns the longest time
  // between two tokens of one, but for one in a hundred, in milliseconds.
  double StreamGap(int streams, int steps) {
    SubmitMany("stream", streams, 64, 4000, 0);
    for (int i = 0; i < 5; ++i) Step();
    std::vector<double> gaps;
    std::map<std::string, cluster::Deadline::Clock::time_point> last;
    std::map<std::string, size_t> tokens;
    for (int step = 0; step < steps; ++step) {
      Step();
      for (int i = 0; i < streams; ++i) {
        const std::string id = absl::StrCat("stream", i);
        if (told_[id].tokens.size() == tokens[id]) continue;
        tokens[id] = told_[id].tokens.size();
        if (last.contains(id)) {
          gaps.push_back(
              std::chrono::duration<double, std::milli>(now_ - last[id])
                  .count());
        }
        last[id] = now_;
      }
    }
    std::sort(gaps.begin(), gaps.end());
    return gaps[gaps.size() * 99 / 100];
  }

  int Ended(const std::string& name, int count) {
    int ended = 0;
    for (int i = 0; i < count; ++i) {
      ended += told_[absl::StrCat(name, i)].ends;
    }
    return ended;
  }

  // Returns whether a plan has work for one of the slots.
  static bool Works(const v1::StepPlan& plan, uint32_t first, uint32_t last) {
    std::vector<uint32_t> slots = Slots(plan.decodes());
    for (const auto& span : plan.prefills()) slots.push_back(span.slot());
    for (const auto& span : plan.replays()) slots.push_back(span.slot());
    return std::any_of(slots.begin(), slots.end(), [&](uint32_t slot) {
      return first <= slot && slot <= last;
    });
  }
};

TEST_F(SchedulerBatchTest, StreamsKeepTheStepTimeBesideABatch) {
  MakeLimited(milliseconds(60));
  SubmitMany("batch", 24, 300, 100, 1);
  // Four decodes alone take 44 ms, with the batch 83.
  EXPECT_LE(StreamGap(4, 3000), 1.2 * 60);
  EXPECT_EQ(Ended("batch", 24), 24);
}

TEST_F(SchedulerBatchTest, WithoutASettingABatchAddsHalfAStep) {
  MakeLimited(std::nullopt);
  SubmitMany("batch", 24, 300, 100, 1);
  EXPECT_LE(StreamGap(4, 3000), 1.2 * 1.5 * 44);
  EXPECT_EQ(Ended("batch", 24), 24);
}

TEST_F(SchedulerBatchTest, NoiseBreaksNoLimit) {
  uint32_t noise = 1;
  step_ms_ = [&noise](const Rows& rows) {
    noise = noise * 1664525 + 1013904223;
    return (20 + 3.0 * (rows.decodes + rows.replays) + 2.0 * rows.prompts) *
           (0.9 + 0.2 * (noise >> 16) / 65536);
  };
  MakeLimited(milliseconds(60));
  SubmitMany("batch", 24, 300, 100, 1);
  EXPECT_LE(StreamGap(4, 3500), 1.2 * 60);
  EXPECT_EQ(Ended("batch", 24), 24);
}

TEST_F(SchedulerBatchTest, APausedBatchCostsStreamsNothing) {
  MakeLimited(milliseconds(0));
  const double alone = StreamGap(4, 1000);
  told_.clear();
  MakeLimited(milliseconds(0));
  SubmitMany("batch", 24, 300, 100, 1);
  for (int i = 0; i < 50; ++i) Step();
  EXPECT_LE(StreamGap(4, 1000), 1.15 * alone);
  EXPECT_EQ(Ended("batch", 24), 0);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(scheduler_->Cancel(absl::StrCat("stream", i)).ok());
  }
  RunAll();
  EXPECT_EQ(Ended("batch", 24), 24);
}

TEST_F(SchedulerBatchTest, AloneABatchHasNoLimit) {
  const auto time = [this] {
    const auto begin = now_;
    SubmitMany("batch", 8, 600, 200, 1);
    RunAll();
    EXPECT_EQ(Ended("batch", 8), 8);
    told_.clear();
    return now_ - begin;
  };
  MakeLimited(std::nullopt);
  const auto without = time();
  MakeLimited(milliseconds(1));
  EXPECT_EQ(time(), without);
}

TEST_F(SchedulerBatchTest, ABatchThatFitsNoStepHasItsTurns) {
  MakeLimited(milliseconds(1));
  SubmitMany("stream", 4, 64, 4000, 0);
  for (int i = 0; i < 5; ++i) Step();
  SubmitMany("batch", 2, 20, 30, 1);
  int steps = 0;
  int turns = 0;
  for (; Ended("batch", 2) < 2 && steps < 1000; ++steps) {
    if (Works(Step(), 4, 5)) ++turns;
  }
  EXPECT_EQ(Ended("batch", 2), 2);
  EXPECT_LE(turns, steps / 8 + 1);
}

TEST_F(SchedulerBatchTest, DecodesThatAreLeftOutTakeTurns) {
  MakeLimited(milliseconds(48));  // Room for one or two.
  SubmitMany("stream", 4, 64, 4000, 0);
  SubmitMany("batch", 6, 20, 1000, 1);
  for (int i = 0; i < 800; ++i) Step();
  std::vector<size_t> tokens;
  for (int i = 0; i < 6; ++i) {
    tokens.push_back(told_[absl::StrCat("batch", i)].tokens.size());
  }
  std::sort(tokens.begin(), tokens.end());
  EXPECT_GT(tokens.front(), 50u);
  EXPECT_LE(tokens.back(), 2 * tokens.front());
}

TEST_F(SchedulerBatchTest, ANewcomerTakesTheSlotOfABatch) {
  MakeLimited(std::nullopt, /*slots=*/4);
  SubmitMany("batch", 4, 100, 500, 1);
  for (int i = 0; i < 20; ++i) Step();
  SubmitMany("new", 1, 20, 2, 0);
  for (int i = 0; i < 3; ++i) Step();
  EXPECT_GE(told_["new0"].tokens.size(), 1u);
  EXPECT_THAT(told_["batch3"].waits, ElementsAre(HasSubstr("higher priority")));
  RunAll();
  EXPECT_EQ(Ended("batch", 4), 4);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(told_[absl::StrCat("batch", i)].tokens.size(), 500u);
  }
}

TEST_F(SchedulerBatchTest, ANewcomerTakesTheBlocksOfABatch) {
  MakeLimited(std::nullopt, /*slots=*/8, /*blocks=*/32);
  SubmitMany("batch", 3, 1200, 200, 1);  // 30 blocks.
  for (int i = 0; i < 20; ++i) Step();
  SubmitMany("new", 1, 700, 2, 0);
  for (int i = 0; i < 3; ++i) Step();
  EXPECT_GE(told_["new0"].runs, 1);
  EXPECT_THAT(told_["batch0"].waits, IsEmpty());
  RunAll();
  EXPECT_EQ(Ended("batch", 3), 3);
}

TEST_F(SchedulerBatchTest, ABatchStaysWhereItsPlaceIsOfNoUse) {
  MakeLimited(std::nullopt, /*slots=*/8, /*blocks=*/32);
  SubmitMany("stream", 1, 3000, 500, 0);  // 24 blocks of 32.
  for (int i = 0; i < 30; ++i) Step();
  SubmitMany("batch", 1, 200, 300, 1);
  for (int i = 0; i < 10; ++i) Step();
  SubmitMany("new", 1, 2000, 2, 0);
  for (int i = 0; i < 20; ++i) Step();
  EXPECT_EQ(told_["new0"].runs, 0);
  EXPECT_THAT(told_["batch0"].waits, IsEmpty());
}

TEST_F(SchedulerBatchTest, APausedBatchTakesNoSlot) {
  MakeLimited(milliseconds(0), /*slots=*/4);
  SubmitMany("stream", 1, 64, 100, 0);
  for (int i = 0; i < 5; ++i) Step();
  SubmitMany("batch", 2, 64, 5, 1);
  for (int i = 0; i < 20; ++i) Step();
  EXPECT_EQ(told_["batch0"].runs, 0);
  RunAll();
  EXPECT_EQ(Ended("batch", 2), 2);
}

TEST_F(SchedulerBatchTest, PromptsOfABatchComeAfterThoseOfPeople) {
  MakeLimited(milliseconds(200));
  SubmitMany("stream", 1, 64, 4000, 0);
  for (int i = 0; i < 20; ++i) Step();
  SubmitMany("batch", 1, 100, 5, 1);
  for (int i = 0; i < 2; ++i) Step();
  SubmitMany("new", 1, 700, 5, 0);
  while (told_["new0"].tokens.empty()) {
    const v1::StepPlan plan = Step();
    if (!Works(plan, 2, 2)) continue;
    EXPECT_THAT(Spans(plan).front(), Pair(2, _));
  }
  RunToEnd("batch0");
}

TEST_F(SchedulerBatchTest, AReplayOfABatchKeepsTheStepTime) {
  MakeLimited(milliseconds(60), /*slots=*/5);
  SubmitMany("batch", 2, 40, 300, 1);
  for (int i = 0; i < 200; ++i) Step();
  EXPECT_LE(StreamGap(4, 2000), 1.2 * 60);  // One of the two gives way.
  EXPECT_GE(scheduler_->cache_use().preemptions, 1u);
  EXPECT_EQ(told_["batch0"].ends, 1);
  EXPECT_EQ(told_["batch1"].ends, 1);
  EXPECT_EQ(told_["batch1"].tokens.size(), 300u);
}

TEST_F(SchedulerBatchTest, AScoredTextOfABatchIsCutInOneForm) {
  MakeLimited(milliseconds(60));
  SubmitMany("stream", 1, 64, 4000, 0);
  for (int i = 0; i < 20; ++i) Step();
  auto scored = RequestOf("scored", 700, 0, /*text=*/99);
  scored->score.emplace();
  scored->windows = true;
  scored->priority = 1;
  ASSERT_TRUE(scheduler_->Submit(scored).ok());
  uint32_t at = 0;
  while (at < 700) {
    const v1::StepPlan plan = Step();
    for (const v1::PrefillSpan& span : plan.prefills()) {
      EXPECT_LT(span.count(), 40u);
      // The first part begins like the whole chunk, and needs no form.
      if (at > 0) {
        EXPECT_EQ(span.part_of_first(), at < 512 ? 0u : 512u);
        EXPECT_EQ(span.part_of_count(), at < 512 ? 512u : 188u);
      }
      at += span.count();
    }
  }
  Step();
  EXPECT_EQ(told_["scored"].ends, 1);
}

}  // namespace
}  // namespace ringfleet::coordinator
