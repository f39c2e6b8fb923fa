// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>

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
  EXPECT_THAT(second->decodes(), ElementsAre(0));
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
  scheduler_->Hold(true);
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
  scheduler_->Hold(false);
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
  EXPECT_THAT(scheduler_->NextPlan()->decodes(), ElementsAre(0));
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
  EXPECT_THAT(scheduler_->NextPlan()->decodes(), ElementsAre(0));
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
  EXPECT_THAT(Spans(*second), ElementsAre(std::make_pair(1u, kPrefillChunk),
                                          std::make_pair(2u, 100u)));
  EXPECT_THAT(second->decodes(), ElementsAre(0));
  ASSERT_TRUE(scheduler_->OnResult(Result(1, {{0, kGoesOn}})).ok());
  const auto third = scheduler_->NextPlan();
  EXPECT_THAT(Spans(*third), ElementsAre(std::make_pair(1u, 488u)));
  EXPECT_THAT(third->decodes(), ElementsAre(0, 2));
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

// What a worker does with plans, written from the contract alone.
class ModelOfWorker {
 public:
  ModelOfWorker(uint32_t slots, uint32_t context)
      : slots_(slots), context_(context) {}

  v1::StepResult Execute(const v1::StepPlan& plan) {
    for (const uint32_t slot : plan.releases()) {
      EXPECT_TRUE(sequences_.contains(slot)) << "released a free slot";
      sequences_.erase(slot);
    }
    for (const v1::Admission& admission : plan.admissions()) {
      EXPECT_LT(admission.slot(), slots_);
      EXPECT_FALSE(sequences_.contains(admission.slot())) << "slot is taken";
      sequences_[admission.slot()] = {
          admission, 0, static_cast<uint32_t>(admission.committed_ids_size()),
          false};
    }
    v1::StepResult result;
    result.set_step(plan.step());
    uint32_t new_tokens = 0;
    std::set<uint32_t> touched;
    for (const v1::PrefillSpan& span : plan.prefills()) {
      Sequence& sequence = sequences_.at(span.slot());
      EXPECT_TRUE(touched.insert(span.slot()).second);
      EXPECT_GT(span.count(), 0u);
      new_tokens += span.count();
      sequence.position += span.count();
      const uint32_t prompt_n = sequence.admission.prompt_ids_size();
      EXPECT_LE(sequence.position, prompt_n);
      if (sequence.position == prompt_n) {
        if (sequence.admission.max_tokens() == 0) {
          sequence.ended = true;
        } else if (sequence.tokens == 0) {
          Draw(span.slot(), sequence, result);
        }
      }
    }
    EXPECT_LE(new_tokens, kMaxPrefillRows);
    uint32_t replayed = 0;
    for (const v1::ReplaySpan& span : plan.replays()) {
      Sequence& sequence = sequences_.at(span.slot());
      EXPECT_TRUE(touched.insert(span.slot()).second);
      const uint32_t prompt_n = sequence.admission.prompt_ids_size();
      EXPECT_GE(sequence.position, prompt_n);
      for (uint32_t i = 0; i < span.count(); ++i) {
        // Committed tokens are those that this worker would have drawn.
        EXPECT_EQ(
            sequence.admission.committed_ids(sequence.position - prompt_n),
            sequence.admission.prompt_ids(0) + sequence.position - prompt_n +
                1);
        ++sequence.position;
      }
      replayed += span.count();
      if (sequence.position == prompt_n + sequence.tokens) {
        Draw(span.slot(), sequence, result);
      }
    }
    EXPECT_LE(replayed, kMaxReplayRows);
    EXPECT_TRUE(replayed == 0 || new_tokens == 0);
    for (const uint32_t slot : plan.decodes()) {
      Sequence& sequence = sequences_.at(slot);
      EXPECT_TRUE(touched.insert(slot).second);
      EXPECT_GT(sequence.tokens, 0u) << "decode before the prompt's end";
      if (sequence.ended) continue;
      EXPECT_LT(sequence.position, context_);
      EXPECT_EQ(sequence.position + 1,
                sequence.admission.prompt_ids_size() + sequence.tokens)
          << "decode before the replay's end";
      ++sequence.position;
      Draw(slot, sequence, result);
    }
    return result;
  }

  size_t occupied() const { return sequences_.size(); }

 private:
  struct Sequence {
    v1::Admission admission;
    uint32_t position;  // Cached.
    uint32_t tokens;
    bool ended;
  };

  void Draw(uint32_t slot, Sequence& sequence, v1::StepResult& result) {
    ++sequence.tokens;
    auto* out = result.add_slots();
    out->set_slot(slot);
    // Token k of a request is its first prompt id + k.
    out->add_tokens(sequence.admission.prompt_ids(0) + sequence.tokens);
    out->add_logprobs(0);
    if (sequence.tokens == sequence.admission.sampling().seed()) {
      out->set_finish(v1::FINISH_REASON_STOP);  // The seed says when to stop.
    } else if (sequence.tokens == sequence.admission.max_tokens() ||
               sequence.position == context_) {
      out->set_finish(v1::FINISH_REASON_LENGTH);
    }
    sequence.ended = out->finish() != v1::FINISH_REASON_UNSPECIFIED;
  }

  const uint32_t slots_, context_;
  std::map<uint32_t, Sequence> sequences_;
};

TEST_F(SchedulerTest, RandomLoadEndsEveryRequestOnceAndLeaksNoSlot) {
  std::mt19937 random(4711);
  const auto draw = [&random](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 100; ++round) {
    const uint32_t slots = draw(1, 6);
    const uint32_t context = draw(1, 1500);
    Make(slots, context);
    told_.clear();
    std::optional<ModelOfWorker> worker(std::in_place, slots, context);
    uint64_t epoch = 77;
    struct Want {
      uint32_t first, tokens;
      bool score, cancelled = false;
    };
    std::map<std::string, Want> want;
    std::deque<v1::StepPlan> in_flight;
    const int requests = draw(1, 25);
    int submitted = 0;
    for (int turn = 0; submitted < requests || !in_flight.empty() ||
                       scheduler_->running() + scheduler_->waiting() > 0;
         ++turn) {
      ASSERT_LT(turn, 1'000'000) << "round " << round << " does not end";
      switch (draw(0, 4)) {
        case 0: {
          if (submitted == requests) break;
          auto request = std::make_shared<Request>();
          request->id = absl::StrCat("r", submitted++);
          const uint32_t prompt_n = draw(1, context);
          const uint32_t first = 1000 * submitted;
          request->prompt_ids.assign(prompt_n, first);
          request->max_tokens = draw(0, 40);
          const uint32_t stop = draw(1, 60);
          request->sampling.set_seed(stop);
          ASSERT_TRUE(scheduler_->Submit(request).ok());
          want[request->id] = {
              first,
              std::min({request->max_tokens, stop, context - prompt_n + 1}),
              request->max_tokens == 0};
          break;
        }
        case 1:
          if (submitted > 0 && draw(0, 9) == 0) {
            const std::string id = absl::StrCat("r", draw(0, submitted - 1));
            if (scheduler_->Cancel(id).ok()) want[id].cancelled = true;
          }
          break;
        case 2:
          if (auto plan = scheduler_->NextPlan()) {
            in_flight.push_back(*plan);
            ASSERT_LE(in_flight.size(), 2u);
          }
          break;
        case 3:
          if (!in_flight.empty()) {
            const auto result = worker->Execute(in_flight.front());
            in_flight.pop_front();
            ASSERT_TRUE(scheduler_->OnResult(result).ok());
          }
          break;
        case 4:  // The epoch fails, not often enough in a row for a suspect.
          if (draw(0, 60) != 0) break;
          scheduler_->CloseEpoch(absl::UnavailableError("lost"),
                                 /*failed=*/draw(0, 9) == 0);
          in_flight.clear();
          worker.emplace(slots, context);
          Open(++epoch, slots, context);
          break;
      }
      Collect();
    }
    while (auto plan = scheduler_->NextPlan()) {
      ASSERT_TRUE(scheduler_->OnResult(worker->Execute(*plan)).ok());
    }
    EXPECT_EQ(worker->occupied(), 0u) << "slots leaked in round " << round;
    for (const auto& [id, expected] : want) {
      const Told& told = told_[id];
      EXPECT_EQ(told.ends, 1) << id;
      std::vector<uint32_t> tokens(told.tokens.size());
      std::iota(tokens.begin(), tokens.end(), expected.first + 1);
      EXPECT_EQ(told.tokens, tokens) << id;
      if (!expected.cancelled) {
        EXPECT_TRUE(told.failure.ok()) << told.failure;
        EXPECT_EQ(told.tokens.size(), expected.score ? 0 : expected.tokens);
      } else {
        EXPECT_LE(told.tokens.size(), expected.tokens);
      }
    }
  }
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
