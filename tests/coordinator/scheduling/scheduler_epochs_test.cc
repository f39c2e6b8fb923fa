// SPDX-License-Identifier: Apache-2.0
// Requests at the end of an epoch, and requests that must wait.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/scheduling/scheduler_fixture.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(SchedulerTest, AFailedEpochsRequestsGoOnWithTheirTokensInTheirPlace) {
  Make(2, 4096);
  ASSERT_TRUE(Submit("a", 600, 50).ok());
  ASSERT_TRUE(Submit("b", 5, 50).ok());
  ASSERT_TRUE(Submit("c", 5, 50).ok());
  scheduler_->NextPlan();
  scheduler_->NextPlan();
  ASSERT_TRUE(scheduler_->OnResult(Result(1, {{1, kGoesOn}}, 31)).ok());
  scheduler_->NextPlan();
  ASSERT_TRUE(
      scheduler_->OnResult(Result(2, {{0, kGoesOn}, {1, kGoesOn}}, 32)).ok());
  scheduler_->CloseEpoch(absl::UnavailableError("worker 1 was lost"), true);
  EXPECT_EQ(scheduler_->running(), 0u);
  EXPECT_EQ(scheduler_->waiting(), 3u);
  scheduler_->TellWaiting("it waits for worker 1");
  scheduler_->TellWaiting("it waits for worker 1");
  Collect();
  for (const char* id : {"a", "b", "c"}) {
    EXPECT_THAT(told_[id].waits,
                ElementsAre("worker 1 was lost", "it waits for worker 1"));
  }
  Open(78, 2, 4096);
  Collect();
  EXPECT_EQ(told_["c"].waits.back(), "");
  const auto first = scheduler_->NextPlan();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->epoch(), 78u);
  EXPECT_EQ(first->step(), 1u);
  ASSERT_EQ(first->admissions_size(), 2);
  EXPECT_THAT(first->admissions(0).committed_ids(), ElementsAre(32));
  EXPECT_THAT(first->admissions(1).committed_ids(), ElementsAre(31, 32));
  // The chunks of the first evaluation.
  EXPECT_THAT(Spans(*first), ElementsAre(std::make_pair(1u, 5u),
                                         std::make_pair(0u, kPrefillChunk)));
  // The replay of "b" first, then the rest of the prompt of "a".
  const auto second = scheduler_->NextPlan();
  EXPECT_THAT(Spans(*second), IsEmpty());
  ASSERT_EQ(second->replays_size(), 1);
  EXPECT_EQ(second->replays(0).slot(), 1u);
  EXPECT_EQ(second->replays(0).count(), 2u);
  ASSERT_TRUE(scheduler_->OnResult(Result(1, {})).ok());
  const auto third = scheduler_->NextPlan();
  EXPECT_THAT(Spans(*third), ElementsAre(std::make_pair(0u, 88u)));
  EXPECT_THAT(Slots(third->decodes()), ElementsAre(1));
  ASSERT_TRUE(scheduler_->OnResult(Result(2, {{1, kGoesOn}}, 33)).ok());
  const auto fourth = scheduler_->NextPlan();
  ASSERT_EQ(fourth->replays_size(), 1);
  EXPECT_EQ(fourth->replays(0).slot(), 0u);
  Collect();
  EXPECT_THAT(told_["b"].tokens, ElementsAre(31, 32, 33));
  EXPECT_EQ(told_["b"].runs, 2);
  EXPECT_EQ(told_["c"].runs, 0);
}

TEST_F(SchedulerTest, AScoreRepeatsTheWindowThatAFailureCutOff) {
  Make(1, 100);
  auto request = std::make_shared<Request>();
  request->id = "s";
  request->prompt_ids.assign(150, 5);
  request->score.emplace();
  request->windows = true;
  ASSERT_TRUE(scheduler_->Submit(request).ok());
  const auto score = [this](uint64_t step, int ids) {
    v1::StepResult result;
    result.set_step(step);
    auto* slot = result.add_slots();
    for (int i = 0; i < ids; ++i) slot->mutable_score()->add_logprobs(-2);
    return scheduler_->OnResult(result);
  };
  EXPECT_THAT(Spans(*scheduler_->NextPlan()),
              ElementsAre(std::make_pair(0u, 100u)));
  ASSERT_TRUE(score(1, 99).ok());
  // The next window begins with the last id of the first.
  EXPECT_THAT(Spans(*scheduler_->NextPlan()),
              ElementsAre(std::make_pair(0u, 51u)));
  scheduler_->CloseEpoch(absl::UnavailableError("lost"), true);
  Open(78, 1, 100);
  EXPECT_THAT(Spans(*scheduler_->NextPlan()),
              ElementsAre(std::make_pair(0u, 51u)));
  ASSERT_TRUE(score(1, 50).ok());
  Collect();
  EXPECT_THAT(told_["s"].scored, ElementsAre(99, 149));
  EXPECT_EQ(told_["s"].scores, 1);
  EXPECT_EQ(told_["s"].ends, 1);
}

TEST_F(SchedulerTest, NanEndsItsOwnRequestOnly) {
  Make(2, 100);
  ASSERT_TRUE(Submit("a", 3, 50).ok());
  ASSERT_TRUE(Submit("b", 3, 50).ok());
  scheduler_->NextPlan();
  v1::StepResult result = Result(1, {{1, kGoesOn}});
  v1::SlotResult* bad = result.add_slots();
  bad->set_slot(0);
  bad->mutable_error()->set_code(
      static_cast<uint32_t>(absl::StatusCode::kDataLoss));
  bad->mutable_error()->set_message("logits at position 2 are NaN");
  ASSERT_TRUE(scheduler_->OnResult(result).ok());
  Collect();
  EXPECT_EQ(told_["a"].failure,
            absl::DataLossError("logits at position 2 are NaN"));
  EXPECT_EQ(told_["b"].ends, 0);
  const auto second = scheduler_->NextPlan();
  EXPECT_THAT(second->releases(), ElementsAre(0));
  EXPECT_THAT(Slots(second->decodes()), ElementsAre(1));
}

TEST_F(SchedulerTest, ARequestThatEndsEveryEpochEndsAloneWithTheCause) {
  Make(8, 100);
  const absl::Status cause = absl::UnavailableError("worker 0 was lost");
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(Submit(absl::StrCat("r", i), 3, 5).ok());
  }
  // "r2" ends each epoch in which its prompt is evaluated.
  int epochs = 0;
  const auto run = [&] {
    for (int step = 1; step < 100; ++step) {
      Collect();
      const auto plan = scheduler_->NextPlan();
      if (!plan.has_value()) return true;
      v1::StepResult result = Result(plan->step(), {});
      for (const v1::PrefillSpan& span : plan->prefills()) {
        bool fatal = false;
        for (const v1::Admission& admission : plan->admissions()) {
          fatal |= admission.slot() == span.slot() &&
                   admission.prompt_ids_size() == 7;
        }
        if (fatal) return false;
        if (plan->admissions(0).committed_ids().empty()) {
          *result.add_slots() = Result(0, {{span.slot(), kGoesOn}}).slots(0);
        }
      }
      for (const v1::ReplaySpan& span : plan->replays()) {
        *result.add_slots() = Result(0, {{span.slot(), kGoesOn}}).slots(0);
      }
      for (const v1::Decode& decode : plan->decodes()) {
        *result.add_slots() = Result(0, {{decode.slot(), kGoesOn}}).slots(0);
      }
      EXPECT_TRUE(scheduler_->OnResult(result).ok());
    }
    return true;
  };
  ASSERT_TRUE(Submit("bad", 7, 5).ok());
  ASSERT_TRUE(Submit("last", 3, 5).ok());
  while (!run()) {
    ASSERT_LT(++epochs, 10);
    scheduler_->CloseEpoch(cause, /*failed=*/true);
    Open(77 + epochs, 8, 100);
  }
  Collect();
  EXPECT_EQ(epochs, Run::kMostFailures);
  const absl::Status& failure = told_["bad"].failure;
  EXPECT_EQ(failure.code(), cause.code());
  EXPECT_EQ(failure.message(), cause.message());
  EXPECT_TRUE(failure.GetPayload(kFailedAlonePayload).has_value());
  for (const char* id : {"r0", "r1", "r2", "r3", "last"}) {
    EXPECT_TRUE(told_[id].failure.ok()) << id << ": " << told_[id].failure;
    EXPECT_EQ(told_[id].tokens.size(), 5u) << id;
    EXPECT_EQ(told_[id].ends, 1) << id;
  }
}

// Its admission ends the epochs. The first plan with it has replays of another
// and none of its rows.
TEST_F(SchedulerTest, ARequestWhoseAdmissionEndsEveryEpochEnds) {
  Make(2, 100);
  const absl::Status cause = absl::UnavailableError("worker 0 was lost");
  ASSERT_TRUE(Submit("good", 3, 50).ok());
  const auto step = [&](const v1::StepPlan& plan, bool draws) {
    v1::StepResult result = Result(plan.step(), {});
    if (draws) *result.add_slots() = Result(0, {{0, kGoesOn}}).slots(0);
    ASSERT_TRUE(scheduler_->OnResult(result).ok());
  };
  for (int i = 0; i < 10; ++i) step(*scheduler_->NextPlan(), true);
  scheduler_->CloseEpoch(cause, /*failed=*/true);
  Open(78, 2, 100);
  step(*scheduler_->NextPlan(), false);  // The prompt.
  ASSERT_TRUE(Submit("bad", 7, 5).ok());
  std::optional<v1::StepPlan> plan = scheduler_->NextPlan();
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->admissions_size(), 1);
  EXPECT_EQ(plan->replays_size(), 1);
  EXPECT_EQ(plan->prefills_size(), 0);
  uint32_t epochs = 0;
  while (told_["bad"].ends == 0) {
    ASSERT_LT(epochs, 2 * Run::kMostFailures);
    ASSERT_TRUE(plan.has_value());
    bool admits_bad = false;
    for (const v1::Admission& admission : plan->admissions()) {
      admits_bad |= admission.prompt_ids_size() == 7;
    }
    if (admits_bad) {
      scheduler_->CloseEpoch(cause, /*failed=*/true);
      Open(100 + ++epochs, 2, 100);
    } else {
      step(*plan, plan->prefills().empty());
    }
    Collect();
    plan = scheduler_->NextPlan();
  }
  EXPECT_EQ(epochs, Run::kMostFailures);
  EXPECT_TRUE(told_["bad"].failure.GetPayload(kFailedAlonePayload).has_value());
  EXPECT_EQ(told_["good"].ends, 0) << told_["good"].failure;
}

// Hosts that are lost while a request runs are not its fault: its rows in
// flight are others each time, or there are none.
TEST_F(SchedulerTest, FailuresAtOtherPositionsAreNotTheRequests) {
  Make(1, 4096);
  const absl::Status cause = absl::UnavailableError("worker 0 was lost");
  ASSERT_TRUE(Submit("long", 3000, 5).ok());
  // Evaluates `steps` steps of the prompt. The next one is in flight.
  const auto fail_after = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      const auto plan = scheduler_->NextPlan();
      ASSERT_TRUE(plan.has_value());
      ASSERT_EQ(plan->prefills_size(), 1);
      ASSERT_TRUE(scheduler_->OnResult(Result(plan->step(), {})).ok());
    }
    ASSERT_TRUE(scheduler_->NextPlan().has_value());
    scheduler_->CloseEpoch(cause, /*failed=*/true);
    Open(scheduler_->last_step() + 100, 1, 4096);
  };
  for (int round = 0; round < 3; ++round) {
    for (const int steps : {0, 1, 2, 3, 2}) {
      ASSERT_NO_FATAL_FAILURE(fail_after(steps));
    }
  }
  // Nothing of it is in flight.
  for (int i = 0; i < 10; ++i) {
    const auto plan = scheduler_->NextPlan();
    ASSERT_TRUE(plan.has_value());
    ASSERT_TRUE(scheduler_->OnResult(Result(plan->step(), {})).ok());
    scheduler_->CloseEpoch(cause, /*failed=*/true);
    Open(200 + i, 1, 4096);
  }
  Collect();
  EXPECT_EQ(told_["long"].ends, 0) << told_["long"].failure;
  for (uint32_t i = 1; i < Run::kMostFailures; ++i) {
    ASSERT_NO_FATAL_FAILURE(fail_after(1));
  }
  Collect();
  EXPECT_EQ(told_["long"].ends, 0) << told_["long"].failure;
  ASSERT_NO_FATAL_FAILURE(fail_after(1));
  Collect();
  EXPECT_EQ(told_["long"].failure.code(), cause.code());
}

TEST_F(SchedulerTest, DeadlinesAndTheWaitForALostHostEndRequests) {
  Make(1, 100);
  auto timed = std::make_shared<Request>();
  timed->id = "timed";
  timed->prompt_ids = {1};
  timed->max_tokens = 5;
  timed->deadline = cluster::Deadline(now_ + std::chrono::seconds(2));
  ASSERT_TRUE(scheduler_->Submit(timed).ok());
  ASSERT_TRUE(Submit("a", 3, 5).ok());
  const absl::Status why = absl::UnavailableError("it waits for worker 1");
  scheduler_->NextPlan();
  scheduler_->Expire(/*loading=*/false, absl::Minutes(1), why);
  now_ += std::chrono::seconds(2);
  scheduler_->Expire(/*loading=*/false, absl::Minutes(1), why);
  Collect();
  EXPECT_EQ(told_["timed"].failure.code(), absl::StatusCode::kDeadlineExceeded);
  now_ += std::chrono::hours(1);  // While an epoch runs, jobs wait for slots.
  scheduler_->Expire(/*loading=*/false, absl::Minutes(1), why);
  scheduler_->CloseEpoch(absl::UnavailableError("lost"), true);
  now_ += std::chrono::seconds(59);
  ASSERT_TRUE(Submit("b", 3, 5).ok());
  scheduler_->Expire(/*loading=*/false, absl::Minutes(1), why);
  Collect();
  EXPECT_EQ(told_["a"].ends, 0);
  now_ += std::chrono::hours(2);  // A load is no wait for a lost host.
  scheduler_->Expire(/*loading=*/true, absl::Minutes(1), why);
  Collect();
  EXPECT_EQ(told_["a"].ends, 0);
  now_ += std::chrono::seconds(1);
  scheduler_->Expire(/*loading=*/false, absl::Minutes(1), why);
  Collect();
  EXPECT_EQ(told_["a"].failure, why);
  EXPECT_EQ(told_["b"].ends, 0);
}

}  // namespace
}  // namespace ringfleet::coordinator
