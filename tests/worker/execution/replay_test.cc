// SPDX-License-Identifier: Apache-2.0
// A sequence that enters again with its committed tokens goes on as if it had
// never left.
#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/bundled_model.h"
#include "tests/testing/rank_world.h"
#include "tests/testing/sanitized.h"

namespace ringfleet::worker {
namespace {

using ringfleet::testing::BundledModel;
using ringfleet::testing::RankWorld;
using ringfleet::testing::RankWorldOptions;

struct ReplayCase {
  std::string name;
  RankWorldOptions options;
};

std::ostream& operator<<(std::ostream& out, const ReplayCase& replay) {
  return out << replay.name;
}

v1::Admission PromptOf(uint32_t slot, uint32_t first_id, int prompt,
                       int max_tokens) {
  v1::Admission admission;
  admission.set_slot(slot);
  uint32_t id = first_id;
  for (int i = 0; i < prompt; ++i) {
    admission.add_prompt_ids(id);
    id = (id * 37 + 11) % 101;
  }
  admission.set_max_tokens(max_tokens);
  return admission;
}

void PlanSpan(v1::StepPlan* plan, uint32_t slot, int count) {
  v1::PrefillSpan* span = plan->add_prefills();
  span->set_slot(slot);
  span->set_count(count);
}

void PlanReplay(v1::StepPlan* plan, uint32_t slot, int count) {
  v1::ReplaySpan* span = plan->add_replays();
  span->set_slot(slot);
  span->set_count(count);
}

// Runs a step. All ranks must report the same for `slot`; returns the report.
v1::SlotResult StepOf(RankWorld& world, const v1::StepPlan& plan,
                      uint32_t slot) {
  v1::SlotResult found;
  const std::vector<v1::StepResult> results = world.Step(plan);
  for (const v1::StepResult& result : results) {
    v1::SlotResult mine;
    for (const v1::SlotResult& entry : result.slots()) {
      if (entry.slot() == slot) mine = entry;
    }
    if (&result == &results[0]) found = mine;
    EXPECT_EQ(mine.SerializeAsString(), found.SerializeAsString());
  }
  return found;
}

// Decodes `slot` until it ends and appends to `merged`.
void DecodeToEnd(RankWorld& world, uint32_t slot, v1::SlotResult* merged) {
  for (int step = 0; step < 300; ++step) {
    if (merged->finish() != v1::FINISH_REASON_UNSPECIFIED) return;
    v1::StepPlan plan;
    plan.add_decodes()->set_slot(slot);
    merged->MergeFrom(StepOf(world, plan, slot));
  }
  FAIL() << "the sequence did not end";
}

class ReplayTest : public ::testing::TestWithParam<ReplayCase> {};

TEST_P(ReplayTest, CommittedTokensLeaveTheBitsOfTheirDecodes) {
  constexpr int kTokens =
      200;  // More than the absorbed form takes in a prompt.
  constexpr int kPrompt = 40;
  RankWorldOptions options = GetParam().options;
  options.context = 300;
  const std::string model =
      BundledModel(testing::kSanitized ? "tiny-v2" : "tiny-v3");
  v1::Admission subject = PromptOf(1, 7, kPrompt, kTokens);
  subject.mutable_sampling()->set_temperature(0.7f);
  subject.mutable_sampling()->set_seed(3);
  // Counts of drawn ids must come back, too.
  subject.mutable_sampling()->set_repetition_penalty(1.2f);
  subject.mutable_sampling()->set_frequency_penalty(0.3f);
  subject.set_top_logprobs(2);
  v1::SlotResult whole;
  {
    RankWorld world(model, options);
    v1::StepPlan plan;
    *plan.add_admissions() = subject;
    PlanSpan(&plan, 1, kPrompt);
    whole = StepOf(world, plan, 1);
    DecodeToEnd(world, 1, &whole);
    ASSERT_EQ(whole.tokens_size(), kTokens);
  }
  for (const int committed : {1, 190}) {
    SCOPED_TRACE(::testing::Message() << committed << " committed tokens");
    RankWorld world(model, options);
    v1::Admission again = subject;
    again.set_slot(2);
    for (int i = 0; i < committed; ++i) {
      again.add_committed_ids(whole.tokens(i));
    }
    // Others decode beside it, or have their prompts evaluated.
    v1::StepPlan plan;
    *plan.add_admissions() = PromptOf(0, 50, 9, 100);
    *plan.add_admissions() = again;
    PlanSpan(&plan, 0, 9);
    PlanSpan(&plan, 2, kPrompt);
    EXPECT_EQ(StepOf(world, plan, 2).tokens_size(), 0);  // All are known.
    v1::SlotResult rest;
    for (int left = committed; left > 0;) {
      const int count = std::min(left, left == committed ? 1 : 186);
      plan.Clear();
      PlanReplay(&plan, 2, count);
      plan.add_decodes()->set_slot(0);
      if (left == committed) {
        *plan.add_admissions() = PromptOf(3, 99, 70, 1);
        PlanSpan(&plan, 3, 70);
      }
      left -= count;
      const v1::SlotResult result = StepOf(world, plan, 2);
      EXPECT_EQ(result.tokens_size(), left == 0 ? 1 : 0);
      rest.MergeFrom(result);
    }
    DecodeToEnd(world, 2, &rest);
    ASSERT_EQ(rest.tokens_size(), kTokens - committed);
    EXPECT_EQ(rest.finish(), v1::FINISH_REASON_LENGTH);
    for (int i = 0; i < rest.tokens_size(); ++i) {
      ASSERT_EQ(rest.tokens(i), whole.tokens(committed + i)) << "token " << i;
      ASSERT_EQ(rest.logprobs(i), whole.logprobs(committed + i))
          << "token " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, ReplayTest,
    ::testing::Values(ReplayCase{"f32", {}},
                      ReplayCase{"int8_two_ranks",
                                 {.mesh = {.tensor = 2},
                                  .form = kernels::WeightForm::kInt8,
                                  .wire = cluster::Wire::kBf16}},
                      ReplayCase{"int8_wire_expert_mesh",
                                 {.mesh = {.expert = 2},
                                  .form = kernels::WeightForm::kInt8,
                                  .wire = cluster::Wire::kInt8}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ringfleet::worker
