// SPDX-License-Identifier: Apache-2.0
// Situations in which schedulers of other engines failed their users, in
// virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/scheduling/timed_scheduler.h"

namespace ringfleet::coordinator {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

class SchedulingComplaintsTest : public TimedSchedulerTest {
 protected:
  // No test leaves blocks in use, once its jobs have ended.
  void TearDown() override {
    if (scheduler_->running() + scheduler_->waiting() > 0) return;
    if (scheduler_->open()) RunAll();
    EXPECT_EQ(scheduler_->cache_use().blocks_used, 0u);
  }

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

TEST_F(SchedulingComplaintsTest, ShortPromptsDoNotWaitForALongOne) {
  MakeFor(16, 4096);
  SubmitAll("stream", 1, 64, 5000);
  for (int i = 0; i < 5; ++i) Step();
  ASSERT_TRUE(scheduler_->Submit(RequestOf("long", 65000, 10)).ok());
  for (int i = 0; i < 5; ++i) Step();
  SubmitAll("short", 10, 20, 2);
  // Ten times twenty rows are two steps.
  for (int i = 0; i < 3; ++i) Step();
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(told_[absl::StrCat("short", i)].tokens.empty()) << i;
  }
}

TEST_F(SchedulingComplaintsTest, ALongPromptHoldsNewcomersUpAtNoTime) {
  MakeFor(32, 4096);
  SubmitAll("stream", 8, 64, 5000);
  for (int i = 0; i < 5; ++i) Step();
  ASSERT_TRUE(scheduler_->Submit(RequestOf("long", 8192, 1)).ok());
  int newcomers = 0;
  while (told_["long"].ends == 0) {
    const std::string id = absl::StrCat("new", newcomers++);
    ASSERT_TRUE(scheduler_->Submit(RequestOf(id, 20, 1, /*text=*/30)).ok());
    Step();
    Step();
    EXPECT_EQ(told_[id].tokens.size(), 1u) << id;
  }
  EXPECT_GT(newcomers, 40);
}

// Whoever comes while a step runs takes part in the next one.
TEST_F(SchedulingComplaintsTest, ANewcomerDuringAStepWaitsForOneMore) {
  plans_ahead_ = kMaxPlansInFlight;
  MakeFor(32, 4096);
  SubmitAll("stream", 8, 64, 5000);
  for (int i = 0; i < 5; ++i) Step();
  ASSERT_TRUE(scheduler_->Submit(RequestOf("long", 8192, 1)).ok());
  for (int i = 0; i < 5; ++i) Step();
  int newcomers = 0;
  const auto step_ms = step_ms_;
  std::string arriving;
  step_ms_ = [&](const Rows& rows) {
    if (!arriving.empty()) {
      EXPECT_TRUE(
          scheduler_->Submit(RequestOf(arriving, 20, 1, /*text=*/30)).ok());
      arriving.clear();
    }
    return step_ms(rows);
  };
  while (told_["long"].ends == 0) {
    const std::string id = absl::StrCat("new", newcomers++);
    arriving = id;
    Step();
    Step();
    EXPECT_EQ(told_[id].tokens.size(), 1u) << id;
  }
  EXPECT_GT(newcomers, 20);
}

TEST_F(SchedulingComplaintsTest, ACacheForPartOfTheNeedRecomputesLittle) {
  // Tokens in a second of `jobs` outputs of 1500, which take 13 blocks each.
  const auto throughput = [this](int jobs) {
    MakeFor(32, 250, 2048);
    told_.clear();
    const auto begin = now_;
    SubmitAll("job", jobs, 100, 1500);
    RunAll();
    for (const auto& [id, told] : told_) {
      EXPECT_EQ(told.tokens.size(), 1500u) << id;
      EXPECT_LE(told.runs, 3) << id;
    }
    return 1500 * jobs / std::chrono::duration<double>(now_ - begin).count();
  };
  // Steps of one time, of the form that was measured, and of a time for each
  // row.
  const std::vector<std::function<double(const Rows&)>> models = {
      [](const Rows& rows) { return 40 + 5.0 * rows.prompts; },
      [](const Rows& rows) {
        return 30 + 18 * std::sqrt(rows.decodes + rows.replays) +
               5.0 * rows.prompts;
      },
      [](const Rows& rows) {
        return 40 + 10.0 * (rows.decodes + rows.replays) + 5.0 * rows.prompts;
      },
  };
  plans_ahead_ = kMaxPlansInFlight;
  for (const auto& model : models) {
    step_ms_ = model;
    const double fits = throughput(19);
    EXPECT_EQ(scheduler_->cache_use().preemptions, 0u);
    // The cache holds six tenths of what these need.
    EXPECT_GE(throughput(32), 0.7 * fits);
    const Scheduler::CacheUse use = scheduler_->cache_use();
    EXPECT_GT(use.preemptions, 0u);
    EXPECT_LE(use.recomputed_positions, 2u * 32 * 1500);
    EXPECT_EQ(use.blocks_used, 0u);
  }
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

TEST_F(SchedulingComplaintsTest, SequencesThatFillTheCacheDoNotAllSuffer) {
  MakeFor(4, 20, 1024);
  SubmitAll("job", 4, 100, 900);  // 32 blocks.
  while (scheduler_->cache_use().preemptions == 0) Step();
  std::map<std::string, size_t> tokens;
  for (const auto& [id, told] : told_) tokens[id] = told.tokens.size();
  for (int i = 0; i < 50; ++i) Step();
  int waited = 0;
  for (const auto& [id, told] : told_) {
    EXPECT_EQ(told.ends, 0) << id;
    if (told.waits.empty()) {
      EXPECT_GE(told.tokens.size(), tokens[id] + 50) << id;
    } else {
      ++waited;
    }
  }
  EXPECT_EQ(waited, 1);
  RunAll();
  for (const auto& [id, told] : told_) EXPECT_EQ(told.tokens.size(), 900u);
}

TEST_F(SchedulingComplaintsTest, ANumberInThePromptCostsOnlyWhatIsBehindIt) {
  MakeFor(2, 64, 4096);
  for (const uint32_t nonce : {1, 2}) {
    auto request = RequestOf(absl::StrCat("session", nonce), 1000, 5);
    request->prompt_ids[40] = 70'000 + nonce;
    ASSERT_TRUE(scheduler_->Submit(request).ok());
    RunToEnd(request->id);
  }
  EXPECT_EQ(told_["session2"].timings.cached_n, 40u);
}

TEST_F(SchedulingComplaintsTest, ACancelBetweenDraftAndCheckEndsTheJob) {
  plans_ahead_ = kMaxPlansInFlight;
  for (int steps = 0; steps < 12; ++steps) {
    MakeWith({.id = 77,
              .slots = 2,
              .context = 1024,
              .blocks = 16,
              .drafts = 3,
              .reuse = Scheduler::Reuse::kOwners});
    const std::string id = absl::StrCat("after ", steps);
    ASSERT_TRUE(scheduler_->Submit(RequestOf(id, 1000, 20)).ok());
    for (int i = 0; i < steps; ++i) {
      if (told_[id].ends == 0) Step();
    }
    const bool cancelled = scheduler_->Cancel(id).ok();
    EXPECT_EQ(cancelled, told_[id].ends == 0);
    RunAll();
    Collect();
    EXPECT_EQ(told_[id].ends, 1);
    EXPECT_EQ(scheduler_->cache_use().blocks_used, 0u);
  }
}

TEST_F(SchedulingComplaintsTest, AShortPromptHasOneFormInEverySituation) {
  // Returns the last row's form: position and size of its span.
  const auto form_of_last = [this](const std::string& id) {
    std::map<uint32_t, uint32_t> at;    // Next position by slot.
    std::map<uint32_t, uint32_t> ends;  // Size of the prompt by slot.
    std::pair<uint32_t, uint32_t> form;
    while (told_[id].ends == 0) {
      const v1::StepPlan plan = Step();
      for (const v1::Admission& admission : plan.admissions()) {
        at[admission.slot()] = CachedRows(admission);
        ends[admission.slot()] = admission.prompt_ids_size();
      }
      for (const v1::PrefillSpan& span : plan.prefills()) {
        const uint32_t first =
            span.part_of_count() > 0 ? span.part_of_first() : at[span.slot()];
        at[span.slot()] += span.count();
        if (ends[span.slot()] != 301 || at[span.slot()] != 301) continue;
        form = {first, 0};  // All spans without a past take one form.
      }
    }
    return form;
  };
  const std::pair<uint32_t, uint32_t> cold = {0, 0};
  MakeFor(16, 128, 1024);
  ASSERT_TRUE(scheduler_->Submit(RequestOf("alone", 301, 5)).ok());
  EXPECT_EQ(form_of_last("alone"), cold);
  ASSERT_TRUE(scheduler_->Submit(RequestOf("cached", 301, 5)).ok());
  EXPECT_EQ(form_of_last("cached"), cold);
  EXPECT_EQ(told_["cached"].timings.cached_n, 300u);
  MakeFor(16, 128, 1024);
  SubmitAll("beside", 15, 250, 50);
  ASSERT_TRUE(
      scheduler_->Submit(RequestOf("in a batch", 301, 5, /*text=*/99)).ok());
  EXPECT_EQ(form_of_last("in a batch"), cold);
}

TEST_F(SchedulingComplaintsTest, AScoredPromptIsWholeEachTime) {
  MakeFor(2, 64, 4096);
  for (const char* id : {"first", "again"}) {
    auto request = RequestOf(id, 700, 5);
    request->score.emplace();
    const uint64_t before = evaluated();
    ASSERT_TRUE(scheduler_->Submit(request).ok());
    RunToEnd(id);
    EXPECT_EQ(evaluated() - before, 700u);
    EXPECT_EQ(told_[id].timings.cached_n, 0u);
  }
}

TEST_F(SchedulingComplaintsTest, EveryAcceptedDraftHasItsOwnProbability) {
  MakeWith({.id = 77, .slots = 1, .context = 512, .blocks = 4, .drafts = 2});
  ASSERT_TRUE(scheduler_->Submit(RequestOf("drafts", 10, 4)).ok());
  Step();
  const auto plan = scheduler_->NextPlan();
  ASSERT_EQ(plan->decodes(0).drafts(), 2u);
  v1::StepResult result = Result(plan->step(), {{0, kGoesOn}});
  for (const float logprob : {-2.0F, -3.0F}) {
    result.mutable_slots(0)->add_tokens(9);
    result.mutable_slots(0)->add_logprobs(logprob);
  }
  scheduler_->TakeUpdates();
  ASSERT_TRUE(scheduler_->OnResult(result).ok());
  std::vector<float> logprobs;
  for (const RequestUpdate& update : scheduler_->TakeUpdates()) {
    if (const auto* token = std::get_if<DrawnToken>(&update.what)) {
      logprobs.push_back(token->logprob);
    }
  }
  EXPECT_THAT(logprobs, ElementsAre(-1, -2, -3));
}

TEST_F(SchedulingComplaintsTest, NothingBehindAStopIsKept) {
  MakeWith({.id = 77,
            .slots = 1,
            .context = 512,
            .blocks = 4,
            .drafts = 3,
            .reuse = Scheduler::Reuse::kOwners});
  ASSERT_TRUE(scheduler_->Submit(RequestOf("stops", 100, 50)).ok());
  Step();
  // The first draft is the stop: two tokens of four are drawn. A plan behind
  // it is in flight.
  const auto plan = scheduler_->NextPlan();
  ASSERT_EQ(plan->decodes(0).drafts(), 3u);
  const auto behind = scheduler_->NextPlan();
  ASSERT_TRUE(behind.has_value());
  v1::StepResult result = Result(plan->step(), {{0, kStop}});
  result.mutable_slots(0)->add_tokens(1);
  result.mutable_slots(0)->add_logprobs(-1);
  ASSERT_TRUE(scheduler_->OnResult(result).ok());
  ASSERT_TRUE(
      scheduler_->OnResult(Result(behind->step(), {{0, kGoesOn}})).ok());
  Collect();
  EXPECT_EQ(told_["stops"].tokens.size(), 3u);
  EXPECT_EQ(told_["stops"].timings.predicted_n, 3u);
  // The stop was drawn, and has no row.
  auto next = RequestOf("next", 100, 2);
  next->prompt_ids.insert(next->prompt_ids.end(), {9, 9, 1, 9, 9});
  ASSERT_TRUE(scheduler_->Submit(next).ok());
  RunToEnd("next");
  EXPECT_EQ(told_["next"].timings.cached_n, 102u);
}

TEST_F(SchedulingComplaintsTest, NobodyWaitsForAFleetWithoutEnd) {
  MakeFor(4, 64, 1024);
  SubmitAll("job", 6, 100, 500);
  for (int i = 0; i < 20; ++i) Step();
  scheduler_->CloseEpoch(absl::UnavailableError("host 1 is lost"),
                         /*failed=*/true);
  const absl::Status why = absl::UnavailableError("host 1 did not come back");
  for (int i = 0; i < 61; ++i) {
    now_ += milliseconds(1000);
    scheduler_->Expire(/*loading=*/false, absl::Seconds(60), why);
  }
  Collect();
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(told_[absl::StrCat("job", i)].failure, why);
  }
  MakeFor(4, 64, 1024);  // Nothing is left in the last epoch.
}

TEST_F(SchedulingComplaintsTest, APromptOfMinutesIsNotTooLate) {
  MakeFor(4, 1024, 131'072);
  ASSERT_TRUE(scheduler_->Submit(RequestOf("long", 100'000, 3)).ok());
  const auto begin = now_;
  while (told_["long"].ends == 0) {
    Step();
    scheduler_->Expire(/*loading=*/false, absl::Seconds(60),
                       absl::UnavailableError("waited too long"));
  }
  EXPECT_GE(now_ - begin, std::chrono::seconds(90));
  EXPECT_EQ(told_["long"].tokens.size(), 3u);
}

}  // namespace
}  // namespace ringfleet::coordinator
