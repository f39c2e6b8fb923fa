// SPDX-License-Identifier: Apache-2.0
// Cache blocks of requests, and several tokens a step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/scheduling/scheduler_fixture.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SchedulerBlocksTest : public SchedulerTest {
 protected:
  void MakeWith(const Scheduler::Epoch& epoch) {
    scheduler_.emplace([this] { return now_; });
    scheduler_->OpenEpoch(epoch);
  }

  absl::Status SubmitWith(const std::string& id, uint32_t prompt_n,
                          uint32_t max_tokens, int priority) {
    auto request = std::make_shared<Request>();
    request->id = id;
    request->prompt_ids.assign(prompt_n, 5);
    request->max_tokens = max_tokens;
    request->priority = priority;
    return scheduler_->Submit(request);
  }

  // Runs the next plan of a worker in which every sequence goes on.
  v1::StepPlan Step() {
    const auto plan = scheduler_->NextPlan();
    EXPECT_TRUE(plan.has_value());
    if (!plan.has_value()) return {};
    std::vector<std::pair<uint32_t, v1::FinishReason>> slots;
    for (const v1::PrefillSpan& span : plan->prefills()) {
      slots.emplace_back(span.slot(), kGoesOn);
    }
    for (const v1::Decode& decode : plan->decodes()) {
      slots.emplace_back(decode.slot(), kGoesOn);
    }
    v1::StepResult result = Result(plan->step(), slots);
    // A prompt in front of committed tokens draws nothing.
    for (const v1::Admission& admission : plan->admissions()) {
      for (v1::SlotResult& slot : *result.mutable_slots()) {
        if (slot.slot() == admission.slot() &&
            admission.committed_ids_size() > 0) {
          slot.Clear();
          slot.set_slot(admission.slot());
        }
      }
    }
    for (const v1::Admission& admission : plan->admissions()) {
      to_replay_[admission.slot()] = admission.committed_ids_size();
    }
    for (const v1::ReplaySpan& span : plan->replays()) {
      if ((to_replay_[span.slot()] -= span.count()) == 0) {
        *result.add_slots() = Result(0, {{span.slot(), kGoesOn}}).slots(0);
      }
    }
    EXPECT_TRUE(scheduler_->OnResult(result).ok());
    Collect();
    return *plan;
  }

  static std::vector<std::pair<uint32_t, std::vector<uint32_t>>> Grants(
      const v1::StepPlan& plan) {
    std::vector<std::pair<uint32_t, std::vector<uint32_t>>> grants;
    for (const v1::BlockGrant& grant : plan.grants()) {
      grants.emplace_back(
          grant.slot(),
          std::vector<uint32_t>(grant.blocks().begin(), grant.blocks().end()));
    }
    return grants;
  }

 private:
  std::map<uint32_t, uint32_t> to_replay_;  // Committed ids, by slot.
};

using Granted = std::pair<uint32_t, std::vector<uint32_t>>;

TEST_F(SchedulerBlocksTest, PromptsTakeTheirBlocksAndSequencesGrow) {
  MakeWith({.id = 77, .slots = 4, .context = 512, .blocks = 5});
  ASSERT_TRUE(Submit("a", 127, 200).ok());
  ASSERT_TRUE(Submit("b", 129, 3).ok());
  EXPECT_THAT(Grants(Step()), ElementsAre(Granted{0, {0}}, Granted{1, {1, 2}}));
  EXPECT_EQ(scheduler_->cache_use().blocks_total, 5u);
  EXPECT_EQ(scheduler_->cache_use().blocks_used, 3u);
  EXPECT_THAT(Grants(Step()), IsEmpty());                     // Position 127.
  EXPECT_THAT(Grants(Step()), ElementsAre(Granted{0, {3}}));  // 128.
  EXPECT_EQ(told_["b"].reason, kLength);
  EXPECT_THAT(Step().releases(), ElementsAre(1));
  EXPECT_EQ(scheduler_->cache_use().blocks_used, 2u);
}

TEST_F(SchedulerBlocksTest, NobodyEntersOnBlocksThatOthersMayNeedNext) {
  MakeWith({.id = 77, .slots = 4, .context = 512, .blocks = 4});
  ASSERT_TRUE(Submit("grows", 130, 300).ok());
  ASSERT_TRUE(Submit("two blocks", 200, 20).ok());
  ASSERT_TRUE(Submit("one block", 100, 20).ok());
  EXPECT_THAT(Slots(Step().admissions()), ElementsAre(0));
  // First come, first served: the small one does not overtake.
  EXPECT_THAT(Slots(Step().admissions()), IsEmpty());
  EXPECT_EQ(scheduler_->waiting(), 2u);
  ASSERT_TRUE(scheduler_->Cancel("grows").ok());
  EXPECT_THAT(Slots(Step().admissions()), ElementsAre(0, 1));
}

TEST_F(SchedulerBlocksTest, TheLastOfTheLowestPriorityGivesItsBlocksUp) {
  MakeWith({.id = 77, .slots = 4, .context = 512, .blocks = 7});
  ASSERT_TRUE(SubmitWith("low", 127, 300, 0).ok());
  ASSERT_TRUE(SubmitWith("old", 127, 300, -1).ok());
  ASSERT_TRUE(SubmitWith("new", 127, 300, -1).ok());
  EXPECT_THAT(Slots(Step().admissions()), ElementsAre(0, 1, 2));
  while (scheduler_->cache_use().preemptions == 0) Step();
  // Priority -1 entered first: slots 0 and 1 are those of "old" and "new".
  EXPECT_THAT(told_["low"].waits, ElementsAre(HasSubstr("the cache is full")));
  EXPECT_THAT(told_["new"].waits, IsEmpty());
  const size_t low = told_["low"].tokens.size();
  EXPECT_EQ(scheduler_->cache_use().recomputed_positions, 0u);  // Not yet.
  while (scheduler_->cache_use().preemptions == 1) Step();
  EXPECT_THAT(told_["new"].waits, ElementsAre(HasSubstr("the cache is full")));
  EXPECT_THAT(told_["old"].waits, IsEmpty());
  for (int i = 0; i < 2000 && told_["low"].ends == 0; ++i) Step();
  for (const char* id : {"low", "old", "new"}) {
    EXPECT_EQ(told_[id].tokens.size(), 300u) << id;
    EXPECT_EQ(told_[id].ends, 1) << id;
  }
  EXPECT_GE(scheduler_->cache_use().recomputed_positions, 127 + low);
  Step();
  EXPECT_EQ(scheduler_->cache_use().blocks_used, 0u);
}

TEST_F(SchedulerBlocksTest, ASequenceThatGivesItsBlocksUpIsGrantedNone) {
  MakeWith({.id = 77, .slots = 2, .context = 512, .blocks = 5});
  ASSERT_TRUE(SubmitWith("low", 127, 300, 0).ok());
  Step();
  // Both need their third block in one step, and there is one.
  ASSERT_TRUE(SubmitWith("high", 128, 300, -1).ok());
  v1::StepPlan plan;
  while (scheduler_->cache_use().preemptions == 0) plan = Step();
  EXPECT_THAT(plan.releases(), ElementsAre(0));
  EXPECT_THAT(Grants(plan), ElementsAre(Granted{1, {4}}));
  EXPECT_THAT(Slots(plan.decodes()), ElementsAre(1));
}

TEST_F(SchedulerBlocksTest, ALoneSequenceHasItsContextAndEndsWithLength) {
  MakeWith({.id = 77, .slots = 2, .context = 256, .blocks = 2});
  ASSERT_TRUE(Submit("a", 250, kUnlimitedTokens).ok());
  ASSERT_TRUE(Submit("b", 10, 1).ok());
  for (int i = 0; i < 100 && told_["a"].ends == 0; ++i) Step();
  EXPECT_EQ(told_["a"].reason, kLength);
  EXPECT_EQ(told_["a"].tokens.size(), 7u);
  EXPECT_EQ(scheduler_->cache_use().preemptions, 0u);
  Step();
  EXPECT_EQ(told_["b"].tokens.size(), 1u);
}

TEST_F(SchedulerBlocksTest, GroupsHaveBlocksOfTheirOwn) {
  MakeWith({.id = 77, .groups = 2, .slots = 2, .context = 256, .blocks = 2});
  ASSERT_TRUE(Submit("a", 129, 10).ok());
  ASSERT_TRUE(Submit("b", 129, 10).ok());
  ASSERT_TRUE(Submit("c", 1, 1).ok());
  const v1::StepPlan first = Step();
  EXPECT_THAT(Slots(first.admissions()), ElementsAre(0, 2));
  EXPECT_THAT(Grants(first),
              ElementsAre(Granted{0, {0, 1}}, Granted{2, {0, 1}}));
  EXPECT_THAT(Step().admissions(), IsEmpty());
  ASSERT_TRUE(scheduler_->Cancel("b").ok());
  EXPECT_THAT(Slots(Step().admissions()), ElementsAre(2));
}

TEST_F(SchedulerBlocksTest, AStepCommitsUpToItsDraftsAndOne) {
  MakeWith({.id = 77, .slots = 1, .context = 300, .blocks = 3, .drafts = 3});
  ASSERT_TRUE(Submit("a", 121, 10).ok());
  scheduler_->NextPlan();
  // Nine tokens are left after the first: 4, then 4 with a block ahead.
  const auto second = scheduler_->NextPlan();
  EXPECT_EQ(second->decodes(0).drafts(), 3u);
  ASSERT_TRUE(scheduler_->OnResult(Result(1, {{0, kGoesOn}}, 40)).ok());
  const auto third = scheduler_->NextPlan();
  EXPECT_EQ(third->decodes(0).drafts(), 3u);
  EXPECT_THAT(Grants(*third), ElementsAre(Granted{0, {1}}));
  // Two drafts of step 2 were not accepted.
  v1::StepResult result = Result(2, {{0, kGoesOn}}, 41);
  result.mutable_slots(0)->add_tokens(42);
  result.mutable_slots(0)->add_logprobs(-1);
  ASSERT_TRUE(scheduler_->OnResult(result).ok());
  const auto fourth = scheduler_->NextPlan();
  // Up to 7 tokens are known or in flight: 3 are left.
  EXPECT_EQ(fourth->decodes(0).drafts(), 2u);
  result = Result(3, {{0, kGoesOn}}, 43);
  for (int i = 0; i < 4; ++i) result.mutable_slots(0)->add_tokens(44 + i);
  EXPECT_EQ(scheduler_->OnResult(result).message(),
            "step 3: 5 tokens of slot 0, want at most 4");
  Collect();
  EXPECT_THAT(told_["a"].tokens, ElementsAre(40, 41, 42));
}

}  // namespace
}  // namespace ringfleet::coordinator
