// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/bench_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/scheduling/scheduler.h"
#include "kernels/attention/latent_cache.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::BenchTest Sizes(uint32_t prompt, uint32_t gen, uint32_t depth,
                    uint32_t parallel) {
  v1::BenchTest test;
  test.set_n_prompt(prompt);
  test.set_n_gen(gen);
  test.set_n_depth(depth);
  test.set_n_parallel(parallel);
  return test;
}

// Runs a planner's plans as a fleet would, as slowly as the clock says, and
// checks each against what workers demand.
class BenchPlannerTest : public ::testing::Test {
 protected:
  struct Sequence {
    v1::Admission admission;
    uint32_t length = 0;
    uint32_t room = 0;  // Positions in its blocks.
  };

  void Make(const v1::BenchTest& test, uint32_t repetitions, bool warmup = true,
            uint32_t groups = 1, uint32_t group_slots = 0) {
    groups_ = groups;
    group_slots_ = group_slots;
    planner_.emplace(BenchPlanner::Options{.test = test,
                                           .repetitions = repetitions,
                                           .warmup = warmup,
                                           .vocab_size = 1000,
                                           .bos_id = 7},
                     [this] { return now_; });
  }

  // "admit 0 1 | prefill 0:4 1:4 | decode 0 1"
  std::string Execute(const v1::StepPlan& plan) {
    EXPECT_EQ(plan.epoch(), 5u);
    EXPECT_EQ(plan.step(), ++step_);
    std::string text;
    const auto list = [&text](const char* what, const auto& part) {
      absl::StrAppend(&text, text.empty() || text.back() == ' ' ? "" : " | ",
                      what, part);
    };
    for (const uint32_t slot : plan.releases()) {
      EXPECT_EQ(slots_.erase(slot), 1u);
      std::erase_if(granted_,
                    [slot](const auto& block) { return block.second == slot; });
      list("free", slot);
    }
    for (const v1::Admission& admission : plan.admissions()) {
      EXPECT_TRUE(
          slots_
              .emplace(admission.slot(),
                       Sequence{admission, admission.synthetic_positions()})
              .second);
      EXPECT_LT(admission.synthetic_positions(),
                static_cast<uint32_t>(admission.prompt_ids_size()));
      list("admit", admission.slot());
    }
    for (const v1::BlockGrant& grant : plan.grants()) {
      for (const uint32_t block : grant.blocks()) {
        const uint32_t group = groups_ == 1 ? 0 : grant.slot() / group_slots_;
        EXPECT_TRUE(
            granted_.emplace(std::make_pair(group, block), grant.slot()).second)
            << "block is taken";
        slots_.at(grant.slot()).room += kernels::kCacheBlockPositions;
      }
    }
    for (const v1::Rewind& rewind : plan.rewinds()) {
      Sequence& sequence = slots_.at(rewind.slot());
      EXPECT_LE(rewind.length(), sequence.length);
      sequence.length = rewind.length();
      list("back", absl::StrCat(rewind.slot(), ":", rewind.length()));
    }
    uint32_t prompts = 0;
    for (const v1::PrefillSpan& span : plan.prefills()) {
      Sequence& sequence = slots_.at(span.slot());
      sequence.length += span.count();
      prompts += span.count();
      EXPECT_GE(span.count(), 1u);
      EXPECT_LE(sequence.length,
                static_cast<uint32_t>(sequence.admission.prompt_ids_size()));
      EXPECT_LE(sequence.length, sequence.room);
      list("prompt", absl::StrCat(span.slot(), ":", span.count()));
    }
    EXPECT_LE(prompts, groups_ * kPrefillChunk);
    for (const v1::Decode& decode : plan.decodes()) {
      const uint32_t slot = decode.slot();
      Sequence& sequence = slots_.at(slot);
      const v1::Admission& admission = sequence.admission;
      const uint32_t prompt_n = admission.prompt_ids_size();
      EXPECT_GE(sequence.length, prompt_n);
      // Otherwise it has ended, or is fed what it drew.
      EXPECT_LT(sequence.length - prompt_n, admission.max_tokens() - 1);
      EXPECT_LT(sequence.length - prompt_n,
                static_cast<uint32_t>(admission.forced_ids_size()));
      ++sequence.length;
      EXPECT_LE(sequence.length, sequence.room);
      list("decode", slot);
    }
    return text;
  }

  // Until the planner has nothing more to do; what it did, and what it told.
  void Run() {
    planner_->Own(5, step_, groups_, group_slots_);
    planner_->Start();
    std::deque<v1::StepPlan> in_flight;
    for (int guard = 0; guard < 10'000; ++guard) {
      while (auto plan = planner_->NextPlan()) {
        in_flight.push_back(*plan);
        steps_.push_back(Execute(*plan));
      }
      ASSERT_LE(in_flight.size(), static_cast<size_t>(kMaxPlansInFlight));
      if (in_flight.empty()) {
        if (planner_->done()) break;
        // What takes time here is not the test's.
        now_ += std::chrono::seconds(1);
        ++rests_;
        planner_->Start();
        continue;
      }
      now_ += std::chrono::milliseconds(10);
      v1::StepResult result;
      result.set_step(in_flight.front().step());
      result.set_bytes_read(1000);
      in_flight.pop_front();
      ASSERT_TRUE(planner_->OnResult(result).ok());
    }
    ASSERT_TRUE(planner_->done());
    EXPECT_THAT(slots_, IsEmpty());
    TakeEvents();
  }

  void TakeEvents() {
    const auto at_once = cluster::Deadline::After(absl::ZeroDuration());
    while (auto event = planner_->events().Pop(at_once)) {
      if (std::holds_alternative<BenchEvents::Owned>(*event)) {
        ++owned_;
      } else if (std::holds_alternative<BenchEvents::Rests>(*event)) {
        told_rests_.push_back(samples_ms_.size());
      } else if (const auto* sample =
                     std::get_if<BenchEvents::Sample>(&*event)) {
        EXPECT_EQ(sample->repetition, samples_ms_.size());
        samples_ms_.push_back(sample->time_ns / 1'000'000);
        sample_bytes_.push_back(sample->bytes_read);
      } else {
        ends_.push_back(std::get<absl::Status>(*event));
      }
    }
  }

  cluster::Deadline::Clock::time_point now_{std::chrono::hours(1)};
  uint32_t groups_ = 1;
  uint32_t group_slots_ = 0;
  std::optional<BenchPlanner> planner_;
  uint64_t step_ = 40;  // Of whoever had the fleet before.
  std::map<uint32_t, Sequence> slots_;
  // Slots of blocks, by data group and block.
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> granted_;
  std::vector<std::string> steps_;
  int owned_ = 0;
  int rests_ = 0;
  std::vector<size_t> told_rests_;  // Samples told before each.
  std::vector<uint64_t> samples_ms_;
  std::vector<uint64_t> sample_bytes_;
  std::vector<absl::Status> ends_;
};

TEST_F(BenchPlannerTest, AFilledDepthIsNotEvaluated) {
  v1::BenchTest test = Sizes(8, 0, 2000, 1);
  test.set_fill(true);
  Make(test, 1, /*warmup=*/false);
  Run();
  EXPECT_THAT(steps_, ElementsAre("admit0", "prompt0:8", "free0"));
}

TEST_F(BenchPlannerTest, DecodesBeginWithTheLastTokenOfAFilledDepth) {
  v1::BenchTest test = Sizes(0, 2, 2000, 1);
  test.set_fill(true);
  Make(test, 1, /*warmup=*/false);
  Run();
  EXPECT_THAT(steps_,
              ElementsAre("admit0 | prompt0:1", "decode0", "decode0", "free0"));
}

TEST_F(BenchPlannerTest, GenerationDecodesEverySequenceInEveryStep) {
  Make(Sizes(0, 3, 0, 2), 2);
  Run();
  EXPECT_THAT(
      steps_,
      ElementsAre("admit0 | admit1 | prompt0:1 | prompt1:1",  // The BOS.
                  "decode0 | decode1",                        // Warms up.
                  "back0:1 | back1:1 | decode0 | decode1", "decode0 | decode1",
                  "decode0 | decode1", "back0:1 | back1:1 | decode0 | decode1",
                  "decode0 | decode1", "decode0 | decode1", "free0 | free1"));
  EXPECT_EQ(owned_, 1);
  EXPECT_EQ(rests_, 3);
  EXPECT_THAT(told_rests_, ElementsAre(0, 1, 2));
  // Three steps of 10 ms, two of which are always under way.
  EXPECT_THAT(samples_ms_, ElementsAre(30, 30));
  EXPECT_THAT(sample_bytes_, ElementsAre(3000, 3000));
  EXPECT_THAT(ends_, ElementsAre(absl::OkStatus()));
  EXPECT_EQ(planner_->last_step(), 49u);
}

TEST_F(BenchPlannerTest, PromptsFollowTheDepthInChunksOverAllSequences) {
  Make(Sizes(400, 0, 300, 2), 2, /*warmup=*/false);
  Run();
  EXPECT_THAT(
      steps_,
      ElementsAre("admit0 | admit1 | prompt0:300 | prompt1:212", "prompt1:88",
                  "prompt0:400 | prompt1:112", "prompt1:288",
                  "back0:300 | back1:300 | prompt0:400 | prompt1:112",
                  "prompt1:288", "free0 | free1"));
  EXPECT_THAT(samples_ms_, ElementsAre(20, 20));
}

TEST_F(BenchPlannerTest, PromptsAtDepthZeroStartWithTheBos) {
  Make(Sizes(600, 0, 0, 1), 1);
  Run();
  EXPECT_THAT(steps_,
              ElementsAre("admit0", "prompt0:512", "back0:0 | prompt0:512",
                          "prompt0:88", "free0"));
}

TEST_F(BenchPlannerTest, PromptAndGenerationAreOneTest) {
  Make(Sizes(4, 2, 3, 2), 1, /*warmup=*/false);
  Run();
  EXPECT_THAT(steps_, ElementsAre("admit0 | admit1 | prompt0:3 | prompt1:3",
                                  "prompt0:4 | prompt1:4", "decode0 | decode1",
                                  "decode0 | decode1", "free0 | free1"));
  EXPECT_THAT(samples_ms_, ElementsAre(30));
}

TEST_F(BenchPlannerTest, IdsAreRandomTheSameInEveryRunAndOthersPerSequence) {
  std::vector<std::vector<uint32_t>> ids(2);
  for (int run = 0; run < 2; ++run) {
    Make(Sizes(0, 5, 20, 2), 1);
    planner_->Own(5, step_, groups_, group_slots_);
    planner_->Start();
    const auto plan = planner_->NextPlan();
    ASSERT_TRUE(plan.has_value());
    for (const v1::Admission& admission : plan->admissions()) {
      EXPECT_EQ(admission.prompt_ids(0), 7u);
      EXPECT_EQ(admission.prompt_ids_size(), 20);
      EXPECT_EQ(admission.forced_ids_size(), 5);
      EXPECT_THAT(admission.stop_ids(), IsEmpty());
      EXPECT_EQ(admission.sampling().temperature(), 0);
      const auto append = [&](const auto& more) {
        ids[run].insert(ids[run].end(), more.begin(), more.end());
      };
      append(admission.prompt_ids());
      append(admission.forced_ids());
    }
  }
  EXPECT_EQ(ids[0], ids[1]);
  EXPECT_LT(*std::max_element(ids[0].begin(), ids[0].end()), 1000u);
  // 48 draws of 1000 give 47 different ones on average.
  EXPECT_GT(std::set<uint32_t>(ids[0].begin(), ids[0].end()).size(), 35u);
}

TEST_F(BenchPlannerTest, PlansNothingBeforeItIsStarted) {
  Make(Sizes(0, 3, 0, 1), 1);
  EXPECT_FALSE(planner_->owns());
  EXPECT_EQ(planner_->NextPlan(), std::nullopt);
  planner_->Own(5, step_, groups_, group_slots_);
  EXPECT_TRUE(planner_->owns());
  EXPECT_EQ(planner_->NextPlan(), std::nullopt);
  EXPECT_FALSE(planner_->done());
  planner_->Cancel(absl::CancelledError("gone"));
  EXPECT_TRUE(planner_->done());  // Nothing to free.
  TakeEvents();
  EXPECT_THAT(ends_, ElementsAre(absl::CancelledError("gone")));
}

TEST_F(BenchPlannerTest, ACancelledOneFreesItsSlotsBehindWhatIsInFlight) {
  Make(Sizes(0, 100, 0, 3), 1);
  planner_->Own(5, step_, groups_, group_slots_);
  planner_->Start();
  uint64_t last = 0;
  // Filling, warming up, the first timed step.
  for (int i = 0; i < 3; ++i) {
    if (last > 0) {
      v1::StepResult result;
      result.set_step(last);
      ASSERT_TRUE(planner_->OnResult(result).ok());
    }
    auto plan = planner_->NextPlan();
    if (i == 2) {
      EXPECT_EQ(plan, std::nullopt);  // It rests.
      planner_->Start();
      plan = planner_->NextPlan();
    }
    ASSERT_TRUE(plan.has_value());
    Execute(*plan);
    last = plan->step();
  }
  planner_->Cancel(absl::CancelledError("gone"));
  EXPECT_FALSE(planner_->done());
  const auto release = planner_->NextPlan();
  ASSERT_TRUE(release.has_value());
  EXPECT_EQ(Execute(*release), "free0 | free1 | free2");
  EXPECT_EQ(planner_->NextPlan(), std::nullopt);
  for (const uint64_t step : {last, release->step()}) {
    EXPECT_FALSE(planner_->done());
    v1::StepResult result;
    result.set_step(step);
    ASSERT_TRUE(planner_->OnResult(result).ok());
  }
  EXPECT_TRUE(planner_->done());
  TakeEvents();
  EXPECT_THAT(samples_ms_, IsEmpty());
  EXPECT_THAT(ends_, ElementsAre(absl::CancelledError("gone")));
}

TEST_F(BenchPlannerTest, ACancelledOneFreesItsSlotsFromARest) {
  Make(Sizes(0, 100, 0, 1), 1, /*warmup=*/false);
  planner_->Own(5, step_, groups_, group_slots_);
  planner_->Start();
  const auto fill = planner_->NextPlan();
  ASSERT_TRUE(fill.has_value());
  Execute(*fill);
  v1::StepResult result;
  result.set_step(fill->step());
  ASSERT_TRUE(planner_->OnResult(result).ok());
  EXPECT_EQ(planner_->NextPlan(), std::nullopt);
  planner_->Cancel(absl::CancelledError("gone"));
  const auto release = planner_->NextPlan();
  ASSERT_TRUE(release.has_value());
  EXPECT_EQ(Execute(*release), "free0");
  planner_->Start();  // Comes too late, and does nothing.
  EXPECT_EQ(planner_->NextPlan(), std::nullopt);
  result.set_step(release->step());
  ASSERT_TRUE(planner_->OnResult(result).ok());
  EXPECT_TRUE(planner_->done());
}

TEST_F(BenchPlannerTest, SequencesGoToDataGroupsInTurn) {
  Make(Sizes(400, 0, 0, 3), 1, /*warmup=*/false, /*groups=*/2,
       /*group_slots=*/8);
  Run();
  EXPECT_THAT(steps_, ElementsAre("admit0 | admit8 | admit1",
                                  "prompt0:400 | prompt8:400 | prompt1:112",
                                  "prompt1:288", "free0 | free8 | free1"));
}

TEST_F(BenchPlannerTest, TheEndOfTheEpochIsItsEnd) {
  Make(Sizes(0, 100, 0, 3), 1);
  planner_->Own(5, step_, groups_, group_slots_);
  planner_->Start();
  ASSERT_TRUE(planner_->NextPlan().has_value());
  planner_->Fail(absl::UnavailableError("worker 1 was lost"));
  EXPECT_TRUE(planner_->done());
  EXPECT_EQ(planner_->NextPlan(), std::nullopt);
  TakeEvents();
  EXPECT_THAT(ends_, ElementsAre(absl::UnavailableError("worker 1 was lost")));
}

TEST_F(BenchPlannerTest, AResultOfAnotherStepIsAnError) {
  Make(Sizes(0, 3, 0, 1), 1);
  planner_->Own(5, step_, groups_, group_slots_);
  planner_->Start();
  ASSERT_TRUE(planner_->NextPlan().has_value());
  v1::StepResult result;
  result.set_step(40);
  EXPECT_EQ(planner_->OnResult(result).code(), absl::StatusCode::kInternal);
}

constexpr BenchRoom kRoom = {
    .slots = 4, .groups = 1, .context = 100, .blocks = 4};

TEST(CheckBenchTestTest, NamesWhatIsMissing) {
  EXPECT_TRUE(CheckBenchTest(Sizes(0, 99, 0, 4), kRoom).ok());
  EXPECT_TRUE(CheckBenchTest(Sizes(100, 0, 0, 4), kRoom).ok());
  EXPECT_TRUE(CheckBenchTest(Sizes(40, 10, 50, 1), kRoom).ok());
  const auto message = [](const v1::BenchTest& test,
                          const BenchRoom& room = kRoom) {
    const absl::Status status = CheckBenchTest(test, room);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(Sizes(0, 100, 0, 1)), HasSubstr("at most 100 positions"));
  EXPECT_THAT(message(Sizes(41, 10, 50, 1)),
              HasSubstr("at most 100 positions"));
  EXPECT_THAT(message(Sizes(0, 1, 0xffffffff, 1)), HasSubstr("positions"));
  EXPECT_THAT(message(Sizes(0, 1, 0, 5)), HasSubstr("want at most 4 (slots)"));
  const BenchRoom small = {
      .slots = 4, .groups = 2, .context = 300, .blocks = 4};
  EXPECT_TRUE(CheckBenchTest(Sizes(0, 255, 0, 4), small).ok());
  EXPECT_THAT(message(Sizes(0, 256, 0, 4), small),
              HasSubstr("6 cache blocks of a data group, want at most 4"));
  EXPECT_THAT(message(Sizes(0, 0, 5, 1)), HasSubstr("1 or more"));
  EXPECT_THAT(message(Sizes(0, 1, 5, 0)), HasSubstr("1 or more"));
}

}  // namespace
}  // namespace ringfleet::coordinator
