// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/scheduling/scheduler_fixture.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(SchedulerTest, PlansAheadAndAtMostTwo) {
  Make(2, 100);
  EXPECT_EQ(scheduler_->NextPlan(), std::nullopt);
  ASSERT_TRUE(Submit("a", 10, 50).ok());
  const auto first = scheduler_->NextPlan();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->epoch(), 77u);
  EXPECT_EQ(first->step(), 1u);
  EXPECT_THAT(Slots(first->admissions()), ElementsAre(0));
  EXPECT_THAT(Spans(*first), ElementsAre(std::make_pair(0u, 10u)));
  EXPECT_THAT(first->decodes(), IsEmpty());
  const auto second = scheduler_->NextPlan();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->step(), 2u);
  EXPECT_THAT(second->admissions(), IsEmpty());
  EXPECT_THAT(Slots(second->decodes()), ElementsAre(0));
  EXPECT_FALSE(scheduler_->NextPlan().has_value());
  ASSERT_TRUE(scheduler_->OnResult(Result(1, {{0, kGoesOn}})).ok());
  EXPECT_EQ(scheduler_->NextPlan()->step(), 3u);
}

TEST_F(SchedulerTest, DataGroupsGetEquallyManyAndAChunkEach) {
  Make(/*slots=*/2, /*context=*/2000, /*groups=*/2);
  for (const char* id : {"a", "b", "c", "d", "e"}) {
    ASSERT_TRUE(Submit(id, 500, 50).ok());
  }
  const auto first = scheduler_->NextPlan();
  ASSERT_TRUE(first.has_value());
  EXPECT_THAT(Slots(first->admissions()), ElementsAre(0, 2, 1, 3));
  // Chunks are not cut: a second prompt waits for a step with room.
  EXPECT_THAT(Spans(*first),
              ElementsAre(std::make_pair(0u, 500u), std::make_pair(2u, 500u)));
  // A slot of the second group becomes free.
  ASSERT_TRUE(scheduler_->OnResult(Result(1, {{0, kGoesOn}, {2, kStop}})).ok());
  EXPECT_THAT(Slots(scheduler_->NextPlan()->admissions()), ElementsAre(2));
}

TEST_F(SchedulerTest, NobodyEntersWhileItIsHeld) {
  Make(2, 100);
  ASSERT_TRUE(Submit("a", 10, 50).ok());
  scheduler_->NextPlan();
  scheduler_->Hold("all are here");
  ASSERT_TRUE(Submit("b", 10, 50).ok());
  EXPECT_THAT(scheduler_->NextPlan()->admissions(), IsEmpty());
  ASSERT_TRUE(scheduler_->OnResult(Result(1, {{0, kStop}})).ok());
  ASSERT_TRUE(scheduler_->OnResult(Result(2, {})).ok());
  EXPECT_FALSE(scheduler_->quiet());  // Its slot is to be released.
  ASSERT_TRUE(scheduler_->NextPlan().has_value());
  ASSERT_TRUE(scheduler_->OnResult(Result(3, {})).ok());
  EXPECT_TRUE(scheduler_->quiet());
  EXPECT_FALSE(scheduler_->NextPlan().has_value());
  EXPECT_EQ(scheduler_->waiting(), 1u);
  scheduler_->Hold("");
  Collect();
  EXPECT_THAT(told_["b"].waits, ElementsAre("all are here", ""));
  EXPECT_THAT(Slots(scheduler_->NextPlan()->admissions()), ElementsAre(0));
}

TEST_F(SchedulerTest, AStopEndsTheRequestAndReleasesTheSlotOneStepLate) {
  Make(1, 100);
  ASSERT_TRUE(Submit("a", 4, 50).ok());
  ASSERT_TRUE(Submit("b", 4, 50).ok());
  scheduler_->NextPlan();
  scheduler_->NextPlan();  // Assumes that "a" goes on.
  ASSERT_TRUE(scheduler_->OnResult(Result(1, {{0, kStop}})).ok());
  Collect();
  EXPECT_THAT(told_["a"].tokens, ElementsAre(9));
  EXPECT_EQ(told_["a"].reason, kStop);
  const auto third = scheduler_->NextPlan();
  EXPECT_THAT(third->releases(), ElementsAre(0));
  EXPECT_THAT(Slots(third->admissions()), ElementsAre(0));
  EXPECT_THAT(third->decodes(), IsEmpty());
  // The decode of step 2 found the sequence ended.
  ASSERT_TRUE(scheduler_->OnResult(Result(2, {})).ok());
  ASSERT_TRUE(scheduler_->OnResult(Result(3, {{0, kStop}})).ok());
  Collect();
  EXPECT_THAT(told_["a"].tokens, ElementsAre(9));
  EXPECT_THAT(told_["b"].tokens, ElementsAre(9));
}

TEST_F(SchedulerTest, SurplusTokensNeverReachTheSuccessorInTheSlot) {
  Make(1, 100);
  ASSERT_TRUE(Submit("a", 4, 50).ok());
  ASSERT_TRUE(Submit("b", 4, 50).ok());
  scheduler_->NextPlan();
  scheduler_->NextPlan();
  ASSERT_TRUE(scheduler_->OnResult(Result(1, {{0, kGoesOn}}, 100)).ok());
  ASSERT_TRUE(scheduler_->Cancel("a").ok());
  const auto third = scheduler_->NextPlan();
  EXPECT_THAT(third->releases(), ElementsAre(0));
  EXPECT_THAT(Slots(third->admissions()), ElementsAre(0));
  // The workers knew nothing of the cancellation in step 2.
  ASSERT_TRUE(scheduler_->OnResult(Result(2, {{0, kGoesOn}}, 101)).ok());
  ASSERT_TRUE(scheduler_->OnResult(Result(3, {{0, kGoesOn}}, 102)).ok());
  Collect();
  EXPECT_THAT(told_["a"].tokens, ElementsAre(100));
  EXPECT_EQ(told_["a"].failure.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(told_["b"].tokens, ElementsAre(102));
}

TEST_F(SchedulerTest, PlansNoDecodeBeyondTheTokenLimit) {
  Make(1, 100);
  ASSERT_TRUE(Submit("a", 4, 2).ok());
  scheduler_->NextPlan();
  EXPECT_THAT(Slots(scheduler_->NextPlan()->decodes()), ElementsAre(0));
  ASSERT_TRUE(scheduler_->OnResult(Result(1, {{0, kGoesOn}})).ok());
  EXPECT_FALSE(scheduler_->NextPlan().has_value());
  ASSERT_TRUE(scheduler_->OnResult(Result(2, {{0, kLength}})).ok());
  Collect();
  EXPECT_EQ(told_["a"].tokens.size(), 2u);
  EXPECT_EQ(told_["a"].reason, kLength);
  EXPECT_THAT(scheduler_->NextPlan()->releases(), ElementsAre(0));
  ASSERT_TRUE(scheduler_->OnResult(Result(3, {})).ok());
  EXPECT_FALSE(scheduler_->NextPlan().has_value());
}

TEST_F(SchedulerTest, TheContextEndsASequence) {
  // Prompt of 3 in 4 positions: the first token takes the last position, the
  // second is drawn when none is left.
  Make(1, 4);
  ASSERT_TRUE(Submit("a", 3, 1000).ok());
  scheduler_->NextPlan();
  EXPECT_THAT(Slots(scheduler_->NextPlan()->decodes()), ElementsAre(0));
  ASSERT_TRUE(scheduler_->OnResult(Result(1, {{0, kGoesOn}})).ok());
  EXPECT_FALSE(scheduler_->NextPlan().has_value());
  ASSERT_TRUE(scheduler_->OnResult(Result(2, {{0, kGoesOn}})).ok());
  Collect();
  EXPECT_EQ(told_["a"].tokens.size(), 2u);
  EXPECT_EQ(told_["a"].reason, kLength);
}

TEST_F(SchedulerTest, APromptThatFillsTheContextGetsOneToken) {
  Make(1, 4);
  ASSERT_TRUE(Submit("a", 4, 1000).ok());
  scheduler_->NextPlan();
  EXPECT_FALSE(scheduler_->NextPlan().has_value());
  ASSERT_TRUE(scheduler_->OnResult(Result(1, {{0, kLength}})).ok());
  Collect();
  EXPECT_EQ(told_["a"].tokens.size(), 1u);
  EXPECT_EQ(told_["a"].reason, kLength);
}

TEST_F(SchedulerTest, RefusesPromptsThatCannotFit) {
  Make(1, 1024);
  const absl::Status status = Submit("a", 2000, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "prompt: 2000 tokens, want at most 1024 (the context)");
  EXPECT_EQ(Submit("b", 0, 1).message(),
            "prompt: empty, want at least one token");
  EXPECT_FALSE(scheduler_->NextPlan().has_value());
}

TEST_F(SchedulerTest, LongPromptsAreCutIntoChunksBesideDecodes) {
  Make(3, 4096);
  ASSERT_TRUE(Submit("short", 10, 50).ok());
  scheduler_->NextPlan();
  ASSERT_TRUE(Submit("long", 1000, 50).ok());
  ASSERT_TRUE(Submit("next", 100, 50).ok());
  const auto second = scheduler_->NextPlan();
  EXPECT_THAT(Slots(second->admissions()), ElementsAre(1, 2));
  // A short prompt has room beside a whole chunk.
  EXPECT_THAT(Spans(*second), ElementsAre(std::make_pair(2u, 100u),
                                          std::make_pair(1u, kPrefillChunk)));
  EXPECT_THAT(Slots(second->decodes()), ElementsAre(0));
  ASSERT_TRUE(scheduler_->OnResult(Result(1, {{0, kGoesOn}})).ok());
  const auto third = scheduler_->NextPlan();
  EXPECT_THAT(Spans(*third), ElementsAre(std::make_pair(1u, 488u)));
  EXPECT_THAT(Slots(third->decodes()), ElementsAre(0, 2));
}

TEST_F(SchedulerTest, AdmitsInTheOrderOfArrival) {
  Make(2, 100);
  for (const char* id : {"a", "b", "c", "d"})
    ASSERT_TRUE(Submit(id, 3, 1).ok());
  const auto first = scheduler_->NextPlan();
  EXPECT_THAT(Slots(first->admissions()), ElementsAre(0, 1));
  EXPECT_EQ(scheduler_->running(), 2u);
  EXPECT_EQ(scheduler_->waiting(), 2u);
  ASSERT_TRUE(
      scheduler_->OnResult(Result(1, {{0, kLength}, {1, kLength}})).ok());
  const auto second = scheduler_->NextPlan();
  EXPECT_THAT(second->releases(), ElementsAre(0, 1));
  ASSERT_TRUE(
      scheduler_->OnResult(Result(2, {{0, kLength}, {1, kLength}})).ok());
  Collect();
  for (const char* id : {"a", "b", "c", "d"})
    EXPECT_EQ(told_[id].ends, 1) << id;
}

TEST_F(SchedulerTest, AScoreEndsWithItsLastSpan) {
  Make(1, 1024);
  auto request = std::make_shared<Request>();
  request->id = "s";
  request->prompt_ids.assign(600, 5);
  request->score.emplace().set_top(8);
  ASSERT_TRUE(scheduler_->Submit(request).ok());
  const auto first = scheduler_->NextPlan();
  EXPECT_EQ(first->admissions(0).score().top(), 8u);
  EXPECT_EQ(first->admissions(0).max_tokens(), 0u);
  const auto second = scheduler_->NextPlan();
  EXPECT_THAT(Spans(*second), ElementsAre(std::make_pair(0u, 88u)));
  EXPECT_THAT(second->decodes(), IsEmpty());
  for (const uint64_t step : {1, 2}) {
    v1::StepResult result;
    result.set_step(step);
    auto* slot = result.add_slots();
    slot->mutable_score()->add_logprobs(-2);
    if (step == 2) slot->set_finish(kLength);
    ASSERT_TRUE(scheduler_->OnResult(result).ok());
    Collect();
    EXPECT_EQ(told_["s"].scored.size(), step);
    EXPECT_EQ(told_["s"].scores, step == 2 ? 1 : 0);
    EXPECT_EQ(told_["s"].ends, step == 2 ? 1 : 0);
  }
  EXPECT_TRUE(told_["s"].failure.ok());
}

TEST_F(SchedulerTest, CancelsWaitingRequestsAtOnce) {
  Make(1, 100);
  ASSERT_TRUE(Submit("a", 3, 5).ok());
  ASSERT_TRUE(Submit("b", 3, 5).ok());
  scheduler_->NextPlan();
  ASSERT_TRUE(scheduler_->Cancel("b").ok());
  EXPECT_EQ(scheduler_->waiting(), 0u);
  Collect();
  EXPECT_EQ(told_["b"].failure.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(scheduler_->Cancel("b").code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(scheduler_->Cancel("a").ok());
  EXPECT_EQ(scheduler_->Cancel("a").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(scheduler_->running(), 0u);
}

TEST_F(SchedulerTest, ACancelledPromptIsNotEvaluatedFurther) {
  Make(1, 4096);
  ASSERT_TRUE(Submit("a", 2000, 5).ok());
  scheduler_->NextPlan();
  ASSERT_TRUE(scheduler_->Cancel("a").ok());
  const auto second = scheduler_->NextPlan();
  EXPECT_THAT(second->releases(), ElementsAre(0));
  EXPECT_THAT(second->prefills(), IsEmpty());
}

TEST_F(SchedulerTest, FailAllEndsEveryRequestOnce) {
  Make(1, 100);
  ASSERT_TRUE(Submit("a", 3, 5).ok());
  ASSERT_TRUE(Submit("b", 3, 5).ok());
  scheduler_->NextPlan();
  scheduler_->FailAll(absl::UnavailableError("worker 1 was lost"));
  Collect();
  for (const char* id : {"a", "b"}) {
    EXPECT_EQ(told_[id].ends, 1);
    EXPECT_EQ(told_[id].failure, absl::UnavailableError("worker 1 was lost"));
  }
  EXPECT_FALSE(scheduler_->open());
}

TEST_F(SchedulerTest, MeasuresFromAdmissionAndFromTheFirstToken) {
  Make(1, 100);
  ASSERT_TRUE(Submit("a", 3, 3).ok());
  now_ += std::chrono::milliseconds(1000);  // Waiting does not count.
  scheduler_->NextPlan();
  scheduler_->NextPlan();
  now_ += std::chrono::milliseconds(30);
  ASSERT_TRUE(scheduler_->OnResult(Result(1, {{0, kGoesOn}})).ok());
  scheduler_->NextPlan();
  now_ += std::chrono::milliseconds(5);
  ASSERT_TRUE(scheduler_->OnResult(Result(2, {{0, kGoesOn}})).ok());
  now_ += std::chrono::milliseconds(6);
  ASSERT_TRUE(scheduler_->OnResult(Result(3, {{0, kLength}})).ok());
  Collect();
  const RequestTimings& timings = told_["a"].timings;
  EXPECT_EQ(timings.prompt_n, 3u);
  EXPECT_EQ(timings.predicted_n, 3u);
  EXPECT_DOUBLE_EQ(timings.prompt_ms, 30);
  EXPECT_DOUBLE_EQ(timings.predicted_ms, 11);
}

TEST_F(SchedulerTest, ResultsOutsideThePlanAreErrors) {
  Make(2, 100);
  ASSERT_TRUE(Submit("a", 3, 5).ok());
  EXPECT_EQ(scheduler_->OnResult(Result(1, {})).message(),
            "result of step 1, want none");
  scheduler_->NextPlan();
  EXPECT_EQ(scheduler_->OnResult(Result(2, {})).message(),
            "result of step 2, want 1");
  EXPECT_EQ(scheduler_->OnResult(Result(1, {{1, kGoesOn}})).message(),
            "step 1: result for slot 1, which the plan does not name");
}

TEST_F(SchedulerTest, AnEmptyPlanIsAStepLikeOthers) {
  Make(1, 64);
  for (uint64_t step = 1; step <= kMaxPlansInFlight; ++step) {
    const auto plan = scheduler_->EmptyPlan();
    ASSERT_TRUE(plan.has_value());
    EXPECT_EQ(plan->step(), step);
    EXPECT_EQ(plan->epoch(), 77u);
  }
  EXPECT_FALSE(scheduler_->EmptyPlan().has_value());
  v1::StepResult result;
  result.set_epoch(77);
  result.set_step(1);
  EXPECT_TRUE(scheduler_->OnResult(result).ok());
  EXPECT_EQ(scheduler_->EmptyPlan()->step(), kMaxPlansInFlight + 1u);
}

}  // namespace
}  // namespace ringfleet::coordinator
