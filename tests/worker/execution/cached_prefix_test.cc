// SPDX-License-Identifier: Apache-2.0
// A sequence that begins with cached rows of another goes on as if it had
// evaluated them itself, in the same forms.
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

constexpr int kPrompt = 200;
constexpr int kTokens = 30;  // Of each sequence.

struct CachedCase {
  std::string name;
  RankWorldOptions options;
};

std::ostream& operator<<(std::ostream& out, const CachedCase& cached) {
  return out << cached.name;
}

class CachedPrefixTest : public ::testing::TestWithParam<CachedCase> {
 protected:
  void SetUp() override {
    options_ = GetParam().options;
    options_.context = 300;
    model_ = BundledModel(testing::kSanitized ? "tiny-v2" : "tiny-v3");
    uint32_t id = 7;
    for (int i = 0; i < kPrompt; ++i) {
      first_.add_prompt_ids(id);
      id = (id * 37 + 11) % 101;
    }
    first_.set_max_tokens(kTokens);
  }

  static void Prefill(v1::StepPlan* plan, uint32_t slot, int count,
                      int part_of = 0) {
    v1::PrefillSpan* span = plan->add_prefills();
    span->set_slot(slot);
    span->set_count(count);
    span->set_part_of_count(part_of);
  }

  static void Replay(v1::StepPlan* plan, uint32_t slot, int count) {
    v1::ReplaySpan* span = plan->add_replays();
    span->set_slot(slot);
    span->set_count(count);
  }

  static void Grant(v1::StepPlan* plan, uint32_t slot,
                    const std::vector<uint32_t>& blocks) {
    v1::BlockGrant* grant = plan->add_grants();
    grant->set_slot(slot);
    grant->mutable_blocks()->Add(blocks.begin(), blocks.end());
  }

  // Runs a step and appends what rank 0 reports for `slot`.
  static void Step(RankWorld& world, const v1::StepPlan& plan, uint32_t slot,
                   v1::SlotResult* merged) {
    const std::vector<v1::StepResult> results = world.Step(plan);
    for (const v1::SlotResult& entry : results[0].slots()) {
      if (entry.slot() == slot) merged->MergeFrom(entry);
    }
  }

  static void DecodeToEnd(RankWorld& world, uint32_t slot,
                          v1::SlotResult* merged) {
    for (int step = 0; step < kTokens; ++step) {
      if (merged->finish() != v1::FINISH_REASON_UNSPECIFIED) return;
      v1::StepPlan plan;
      plan.add_decodes()->set_slot(slot);
      Step(world, plan, slot, merged);
    }
    EXPECT_NE(merged->finish(), v1::FINISH_REASON_UNSPECIFIED);
  }

  // Evaluates the first sequence in slot 0, whose blocks are 0 and 1.
  v1::SlotResult RunFirst(RankWorld& world) {
    v1::SlotResult result;
    v1::StepPlan plan;
    *plan.add_admissions() = first_;
    Grant(&plan, 0, {0, 1});
    Prefill(&plan, 0, kPrompt);
    Step(world, plan, 0, &result);
    DecodeToEnd(world, 0, &result);
    EXPECT_EQ(result.tokens_size(), kTokens);
    return result;
  }

  static void ExpectEqual(const v1::SlotResult& a, const v1::SlotResult& b) {
    ASSERT_EQ(a.tokens_size(), kTokens);
    ASSERT_EQ(b.tokens_size(), kTokens);
    for (int i = 0; i < kTokens; ++i) {
      ASSERT_EQ(a.tokens(i), b.tokens(i)) << "token " << i;
      ASSERT_EQ(a.logprobs(i), b.logprobs(i)) << "token " << i;
    }
  }

  RankWorldOptions options_;
  std::string model_;
  v1::Admission first_;  // To slot 0.
};

TEST_P(CachedPrefixTest, AnAnswerIsThePrefixOfTheNextPrompt) {
  constexpr int kAnswer = 20;
  v1::Admission second = first_;
  second.set_slot(1);
  v1::SlotResult reused;
  {
    RankWorld world(model_, options_);
    const v1::SlotResult first = RunFirst(world);
    for (int i = 0; i < kAnswer; ++i) second.add_prompt_ids(first.tokens(i));
    for (const uint32_t id : {1, 2, 3}) second.add_prompt_ids(id);
    v1::StepPlan plan;
    plan.add_releases(0);
    *plan.add_admissions() = second;
    v1::CachedPrefix* cached = plan.mutable_admissions(0)->mutable_cached();
    cached->add_blocks(0);
    cached->set_copied_block(1);
    cached->set_copied_positions(kPrompt + kAnswer - 128);
    Grant(&plan, 1, {2, 3});
    Prefill(&plan, 1, 3);
    Step(world, plan, 1, &reused);
    DecodeToEnd(world, 1, &reused);
  }
  RankWorld world(model_, options_);
  v1::SlotResult evaluated;
  v1::StepPlan plan;
  *plan.add_admissions() = second;
  Prefill(&plan, 1, kPrompt);
  Step(world, plan, 1, &evaluated);
  plan.Clear();
  Replay(&plan, 1, kAnswer);
  Step(world, plan, 1, &evaluated);
  plan.Clear();
  Prefill(&plan, 1, 3);
  Step(world, plan, 1, &evaluated);
  DecodeToEnd(world, 1, &evaluated);
  ExpectEqual(reused, evaluated);
}

TEST_P(CachedPrefixTest, APartOfASpanIsRepeatedInItsForm) {
  constexpr int kCommon = 150;
  v1::Admission second = first_;
  second.set_slot(1);
  for (int i = kCommon; i < kPrompt; ++i) second.set_prompt_ids(i, i % 50);
  v1::SlotResult reused;
  {
    RankWorld world(model_, options_);
    RunFirst(world);
    // The first sequence is still there.
    v1::StepPlan plan;
    *plan.add_admissions() = second;
    v1::CachedPrefix* cached = plan.mutable_admissions(0)->mutable_cached();
    cached->add_blocks(0);
    cached->set_copied_block(1);
    cached->set_copied_positions(kCommon - 128);
    Grant(&plan, 1, {2});
    Prefill(&plan, 1, kPrompt - kCommon);
    Step(world, plan, 1, &reused);
    DecodeToEnd(world, 1, &reused);
  }
  RankWorld world(model_, options_);
  v1::SlotResult evaluated;
  v1::StepPlan plan;
  *plan.add_admissions() = second;
  // In two steps, of which the second alone would take another form.
  Prefill(&plan, 1, kCommon - 1, /*part_of=*/kPrompt);
  Step(world, plan, 1, &evaluated);
  plan.Clear();
  Prefill(&plan, 1, 1, /*part_of=*/kPrompt);
  Step(world, plan, 1, &evaluated);
  plan.Clear();
  Prefill(&plan, 1, kPrompt - kCommon);
  Step(world, plan, 1, &evaluated);
  DecodeToEnd(world, 1, &evaluated);
  ExpectEqual(reused, evaluated);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, CachedPrefixTest,
    ::testing::Values(CachedCase{"f32", {}},
                      CachedCase{"int8_two_ranks",
                                 {.mesh = {.tensor = 2},
                                  .form = kernels::WeightForm::kInt8,
                                  .wire = cluster::Wire::kBf16}},
                      CachedCase{"f32_data_groups",
                                 {.mesh = {.data = 2, .expert = 1}}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ringfleet::worker
