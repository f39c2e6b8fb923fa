// SPDX-License-Identifier: Apache-2.0
// Prompts that begin like others, and prompts beside decodes, in virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/scheduling/timed_scheduler.h"

namespace ringfleet::coordinator {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

class SchedulerPromptsTest : public TimedSchedulerTest {
 protected:
  void MakeReusing(Scheduler::Reuse reuse, uint32_t groups = 1) {
    MakeWith({.id = 77,
              .groups = groups,
              .slots = 4,
              .context = 2048,
              .blocks = 64,
              .reuse = reuse});
  }

  // Runs the request. Returns how many cached rows its admission names.
  uint32_t CachedOf(std::shared_ptr<Request> request) {
    EXPECT_TRUE(scheduler_->Submit(request).ok());
    const v1::StepPlan plan = Step();
    uint32_t cached = 0;
    for (const v1::Admission& admission : plan.admissions()) {
      cached = CachedRows(admission);
    }
    RunToEnd(request->id);
    EXPECT_EQ(told_[request->id].timings.cached_n, cached);
    return cached;
  }
};

TEST_F(SchedulerPromptsTest, ASecondPromptBeginsWithTheRowsOfTheFirst) {
  MakeReusing(Scheduler::Reuse::kOwners);
  EXPECT_EQ(CachedOf(RequestOf("first", 300, 4)), 0u);
  ASSERT_TRUE(scheduler_->Submit(RequestOf("again", 300, 4)).ok());
  const v1::StepPlan plan = Step();
  ASSERT_EQ(plan.admissions_size(), 1);
  const v1::CachedPrefix& cached = plan.admissions(0).cached();
  EXPECT_THAT(cached.blocks(), ElementsAre(0, 1));
  EXPECT_EQ(cached.copied_block(), 2u);
  EXPECT_EQ(cached.copied_positions(), 43u);  // The last has to be evaluated.
  EXPECT_THAT(Spans(plan), ElementsAre(Pair(0, 1)));
  RunToEnd("again");
  EXPECT_EQ(told_["again"].timings.cached_n, 299u);
  const Scheduler::CacheUse use = scheduler_->cache_use();
  EXPECT_EQ(use.prefix_queries, 600u);
  EXPECT_EQ(use.prefix_hits, 299u);
}

TEST_F(SchedulerPromptsTest, ShortPromptsTakeOneFormWhetherCachedOrNot) {
  MakeReusing(Scheduler::Reuse::kOwners);
  CachedOf(RequestOf("first", 299, 4));
  ASSERT_TRUE(scheduler_->Submit(RequestOf("again", 700, 4)).ok());
  v1::StepPlan plan = Step();
  ASSERT_EQ(plan.prefills_size(), 1);
  EXPECT_EQ(plan.prefills(0).count(), 213u);  // To the end of the chunk.
  EXPECT_EQ(plan.prefills(0).part_of_first(), 0u);
  EXPECT_EQ(plan.prefills(0).part_of_count(), kPrefillChunk);
  plan = Step();
  EXPECT_EQ(plan.prefills(0).count(), 188u);
  EXPECT_EQ(plan.prefills(0).part_of_count(), 0u);  // A form of its own.
}

TEST_F(SchedulerPromptsTest, AnAnswerIsPartOfTheNextPrefix) {
  MakeReusing(Scheduler::Reuse::kOwners);
  CachedOf(RequestOf("turn 1", 100, 60));
  auto turn_2 = RequestOf("turn 2", 100, 4);
  turn_2->prompt_ids.insert(turn_2->prompt_ids.end(), 60, 9);
  turn_2->prompt_ids.push_back(1);
  // The last token was drawn, and not evaluated.
  EXPECT_EQ(CachedOf(turn_2), 159u);
}

// All rows have one form, so cached rows of any kind serve replays, too.
TEST_F(SchedulerPromptsTest, AReproduciblePromptIsRepeatedInAnyChunks) {
  Scheduler::Epoch epoch = {.id = 77,
                            .slots = 4,
                            .context = 2048,
                            .blocks = 64,
                            .reuse = Scheduler::Reuse::kOwners,
                            .reproducible = true};
  MakeWith(epoch);
  CachedOf(RequestOf("turn 1", 1400, 60));
  auto turn_2 = RequestOf("turn 2", 1400, 60);
  turn_2->prompt_ids.insert(turn_2->prompt_ids.end(), 60, 9);
  turn_2->prompt_ids.push_back(1);
  ASSERT_TRUE(scheduler_->Submit(turn_2).ok());
  const v1::StepPlan plan = Step();
  EXPECT_EQ(CachedRows(plan.admissions(0)), 1459u);
  for (int i = 0; i < 20; ++i) Step();
  scheduler_->CloseEpoch(absl::UnavailableError("lost"), /*failed=*/true);
  epoch.id = 78;
  scheduler_->OpenEpoch(epoch);
  // Rows that were decodes once are evaluated with the prompt.
  EXPECT_THAT(Spans(Step()), ElementsAre(Pair(0, 512)));
  EXPECT_THAT(Spans(Step()), ElementsAre(Pair(0, 512)));
  EXPECT_THAT(Spans(Step()), ElementsAre(Pair(0, 437)));
  RunToEnd("turn 2");
  EXPECT_EQ(told_["turn 2"].tokens.size(), 60u);
}

TEST_F(SchedulerPromptsTest, ARunningPromptServesTheNextOne) {
  MakeReusing(Scheduler::Reuse::kOwners);
  ASSERT_TRUE(scheduler_->Submit(RequestOf("runs", 200, 500)).ok());
  Step();
  EXPECT_EQ(CachedOf(RequestOf("next", 190, 3)), 189u);
}

TEST_F(SchedulerPromptsTest, OwnersAndSaltsAreApart) {
  MakeReusing(Scheduler::Reuse::kOwners);
  CachedOf(RequestOf("first", 200, 2));
  auto request = RequestOf("other owner", 200, 2);
  request->owner = "other";
  EXPECT_EQ(CachedOf(request), 0u);
  request = RequestOf("other salt", 200, 2);
  request->cache_salt = "other";
  EXPECT_EQ(CachedOf(request), 0u);
  EXPECT_EQ(CachedOf(RequestOf("the same", 200, 2)), 199u);
}

TEST_F(SchedulerPromptsTest, OwnersShareOnlyIfToldTo) {
  MakeReusing(Scheduler::Reuse::kAll);
  CachedOf(RequestOf("first", 200, 2));
  auto request = RequestOf("other owner", 200, 2);
  request->owner = "other";
  EXPECT_EQ(CachedOf(request), 199u);
  request = RequestOf("other salt", 200, 2);
  request->cache_salt = "other";
  EXPECT_EQ(CachedOf(request), 0u);
}

TEST_F(SchedulerPromptsTest, NothingIsReusedWhereItIsOffOrThePromptIsScored) {
  MakeReusing(Scheduler::Reuse::kNobodys);
  CachedOf(RequestOf("first", 200, 2));
  EXPECT_EQ(CachedOf(RequestOf("again", 200, 2)), 0u);
  MakeReusing(Scheduler::Reuse::kOwners);
  CachedOf(RequestOf("second", 200, 2));
  auto request = RequestOf("scored", 200, 2);
  request->score.emplace();
  EXPECT_EQ(CachedOf(request), 0u);
}

TEST_F(SchedulerPromptsTest, ASequenceWithoutNumbersLeavesNothing) {
  MakeReusing(Scheduler::Reuse::kOwners);
  ASSERT_TRUE(scheduler_->Submit(RequestOf("nan", 200, 20)).ok());
  Step();
  ASSERT_TRUE(scheduler_->NextPlan().has_value());
  v1::StepResult result;
  result.set_step(2);
  auto* slot = result.add_slots();
  slot->mutable_error()->set_code(
      static_cast<uint32_t>(absl::StatusCode::kDataLoss));
  ASSERT_TRUE(scheduler_->OnResult(result).ok());
  Collect();
  EXPECT_EQ(CachedOf(RequestOf("next", 200, 2)), 0u);
}

TEST_F(SchedulerPromptsTest, ABenchmarkEmptiesTheCache) {
  MakeReusing(Scheduler::Reuse::kOwners);
  CachedOf(RequestOf("first", 200, 2));
  Step();  // Releases the slot.
  ASSERT_TRUE(scheduler_->quiet());
  scheduler_->ContinueAfter(scheduler_->last_step());
  EXPECT_EQ(CachedOf(RequestOf("again", 200, 2)), 0u);
}

TEST_F(SchedulerPromptsTest, SamplesOfAPromptEvaluateItOnce) {
  for (const uint32_t prompt_n : {40u, 300u, 1500u}) {
    MakeReusing(Scheduler::Reuse::kOwners);
    const uint64_t before = evaluated();
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(
          scheduler_->Submit(RequestOf(absl::StrCat("s", i), prompt_n, 20))
              .ok());
    }
    const auto begin = now_;
    while (told_["s3"].tokens.empty()) Step();
    EXPECT_EQ(evaluated() - before, prompt_n + 3);  // Last ones, for logits.
    // One more step than the first one takes.
    EXPECT_LE(now_ - begin,
              milliseconds(prompt_n + 3 + 20 * ((prompt_n + 511) / 512 + 1)));
    RunAll();
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(told_[absl::StrCat("s", i)].tokens.size(), 20u);
    }
    told_.clear();
  }
}

TEST_F(SchedulerPromptsTest, WhoWaitsForAPrefixKeepsItsPlace) {
  MakeReusing(Scheduler::Reuse::kOwners);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(
        scheduler_->Submit(RequestOf(absl::StrCat("s", i), 600, 9)).ok());
  }
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(
        scheduler_->Submit(RequestOf(absl::StrCat("later", i), 50, 9, i + 1))
            .ok());
  }
  // Others overtake while there are slots for all.
  EXPECT_THAT(Slots(Step().admissions()), ElementsAre(0, 1));
  EXPECT_THAT(Slots(Step().admissions()), IsEmpty());
  EXPECT_THAT(Slots(Step().admissions()), ElementsAre(2, 3));
  EXPECT_EQ(told_["s2"].runs, 1);
  EXPECT_EQ(told_["later0"].runs, 1);
  EXPECT_EQ(told_["later1"].runs, 0);
}

TEST_F(SchedulerPromptsTest, WhenThePromptIsCancelledTheNextOneEvaluatesIt) {
  MakeReusing(Scheduler::Reuse::kOwners);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(
        scheduler_->Submit(RequestOf(absl::StrCat("s", i), 1500, 5)).ok());
  }
  Step();
  ASSERT_TRUE(scheduler_->Cancel("s0").ok());
  RunAll();
  EXPECT_EQ(evaluated(), 1500u + 1);
  EXPECT_EQ(told_["s2"].tokens.size(), 5u);
}

TEST_F(SchedulerPromptsTest, NobodyWaitsForAPromptWithoutItsRows) {
  // Most of the text is its own.
  MakeReusing(Scheduler::Reuse::kOwners);
  ASSERT_TRUE(scheduler_->Submit(RequestOf("first", 600, 5)).ok());
  auto other = RequestOf("other", 600, 5);
  for (int i = 200; i < 600; ++i) other->prompt_ids[i] += 5000;
  ASSERT_TRUE(scheduler_->Submit(other).ok());
  auto salted = RequestOf("salted", 600, 5);
  salted->cache_salt = "other";
  ASSERT_TRUE(scheduler_->Submit(salted).ok());
  EXPECT_THAT(Slots(Step().admissions()), ElementsAre(0, 1, 2));
  // A batch may have to wait itself.
  MakeReusing(Scheduler::Reuse::kOwners);
  auto batch = RequestOf("batch", 1500, 5);
  batch->priority = 1;
  ASSERT_TRUE(scheduler_->Submit(batch).ok());
  Step();
  ASSERT_TRUE(scheduler_->Submit(RequestOf("new", 1500, 5)).ok());
  EXPECT_THAT(Slots(Step().admissions()), ElementsAre(1));
  // No rows are reused.
  MakeReusing(Scheduler::Reuse::kNobodys);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(
        scheduler_->Submit(RequestOf(absl::StrCat("s", i), 600, 5)).ok());
  }
  EXPECT_THAT(Slots(Step().admissions()), ElementsAre(0, 1));
}

TEST_F(SchedulerPromptsTest, SamplesEvaluateAPromptOnceInEachGroup) {
  MakeReusing(Scheduler::Reuse::kOwners, /*groups=*/2);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(
        scheduler_->Submit(RequestOf(absl::StrCat("s", i), 1500, 5)).ok());
  }
  RunAll();
  // Two groups evaluate at the same time, and decode at the same time later.
  EXPECT_EQ(evaluated(), 2u * 1500 + 1);
  // Short ones have their first tokens sooner in a group each.
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(
        scheduler_->Submit(RequestOf(absl::StrCat("short", i), 50, 5, 1)).ok());
  }
  EXPECT_THAT(Slots(Step().admissions()), ElementsAre(0, 4));
}

TEST_F(SchedulerPromptsTest, APrefixIsLookedForInItsGroup) {
  MakeReusing(Scheduler::Reuse::kOwners, /*groups=*/2);
  ASSERT_TRUE(scheduler_->Submit(RequestOf("in group 0", 400, 200)).ok());
  Step();
  // Its rows are worth more than an empty group.
  ASSERT_TRUE(scheduler_->Submit(RequestOf("alike", 400, 200)).ok());
  EXPECT_THAT(Slots(Step().admissions()), ElementsAre(1));
  // Others go where the fewest are.
  auto other = RequestOf("other", 400, 200);
  std::reverse(other->prompt_ids.begin(), other->prompt_ids.end());
  ASSERT_TRUE(scheduler_->Submit(other).ok());
  EXPECT_THAT(Slots(Step().admissions()), ElementsAre(4));
}

TEST_F(SchedulerPromptsTest, AJobThatGoesOnStaysInItsGroup) {
  MakeReusing(Scheduler::Reuse::kOwners, /*groups=*/2);
  ASSERT_TRUE(scheduler_->Submit(RequestOf("gone", 400, 200, 1)).ok());
  ASSERT_TRUE(scheduler_->Submit(RequestOf("goes on", 400, 200, 2)).ok());
  EXPECT_THAT(Slots(Step().admissions()), ElementsAre(0, 4));
  Step();
  scheduler_->CloseEpoch(absl::UnavailableError("lost"), /*failed=*/true);
  ASSERT_TRUE(scheduler_->Cancel("gone").ok());
  scheduler_->OpenEpoch({.id = 78,
                         .groups = 2,
                         .slots = 4,
                         .context = 2048,
                         .blocks = 64,
                         .reuse = Scheduler::Reuse::kOwners});
  EXPECT_THAT(Slots(Step().admissions()), ElementsAre(4));
}

TEST_F(SchedulerPromptsTest, APromptKeepsTheStepTimeBesideDecodes) {
  MakeWith({.id = 77,
            .slots = 4,
            .context = 8192,
            .blocks = 256,
            .step_time = milliseconds(120)});
  ASSERT_TRUE(scheduler_->Submit(RequestOf("stream", 64, 1000)).ok());
  EXPECT_THAT(Spans(Step()), ElementsAre(Pair(0, 64)));  // Alone: no limit.
  for (int i = 0; i < 10; ++i) Step();
  ASSERT_TRUE(scheduler_->Submit(RequestOf("long", 4096, 10)).ok());
  std::vector<double> steps;
  uint32_t rows = 0;
  while (told_["long"].tokens.empty()) {
    const auto before = now_;
    const v1::StepPlan plan = Step();
    rows += plan.prefills(0).count();
    EXPECT_EQ(plan.decodes_size(), 1);
    steps.push_back(
        std::chrono::duration<double, std::milli>(now_ - before).count());
  }
  EXPECT_EQ(rows, 4096u);
  EXPECT_LE(*std::max_element(steps.begin(), steps.end()), 120);
  // TTFT is at most 1.2 times the idle one over the part of a step that is
  // left.
  const double sum = std::accumulate(steps.begin(), steps.end(), 0.0);
  EXPECT_LE(sum, 1.2 * (4096 + 8 * 20) / (1 - 20.0 / 120));
}

TEST_F(SchedulerPromptsTest, ChunksOfAScoredTextAreWholeBesideDecodes) {
  MakeWith({.id = 77,
            .slots = 4,
            .context = 8192,
            .blocks = 256,
            .reuse = Scheduler::Reuse::kOwners,
            .step_time = milliseconds(120)});
  ASSERT_TRUE(scheduler_->Submit(RequestOf("stream", 64, 1000)).ok());
  for (int i = 0; i < 10; ++i) Step();
  auto scored = RequestOf("scored", 1100, 0);
  scored->score.emplace();
  scored->windows = true;
  ASSERT_TRUE(scheduler_->Submit(scored).ok());
  std::vector<uint32_t> counts;
  for (int i = 0; i < 3; ++i) {
    const v1::StepPlan plan = Step();
    for (const v1::PrefillSpan& span : plan.prefills()) {
      counts.push_back(span.count());
      EXPECT_EQ(span.part_of_count(), 0u);
    }
  }
  EXPECT_THAT(counts, ElementsAre(512, 512, 76));
  Step();  // Releases the slot.
  EXPECT_EQ(scheduler_->cache_use().blocks_kept, 0u);
}

TEST_F(SchedulerPromptsTest, ALongPromptIsNotStarvedByShortOnes) {
  MakeWith({.id = 77,
            .slots = 16,
            .context = 8192,
            .blocks = 1024,
            .step_time = milliseconds(120)});
  ASSERT_TRUE(scheduler_->Submit(RequestOf("stream", 64, 5000)).ok());
  for (int i = 0; i < 5; ++i) Step();
  const auto submitted = now_;
  ASSERT_TRUE(scheduler_->Submit(RequestOf("long", 4000, 2)).ok());
  // New short prompts would fill every step.
  for (int i = 0; told_["long"].tokens.empty(); ++i) {
    ASSERT_LT(i, 1000) << "the long prompt starves";
    ASSERT_TRUE(
        scheduler_->Submit(RequestOf(absl::StrCat("short", i), 100, 1)).ok());
    Step();
  }
  // It has half of the rows.
  EXPECT_LE(now_ - submitted, milliseconds(3 * 4000));
}

}  // namespace
}  // namespace ringfleet::coordinator
