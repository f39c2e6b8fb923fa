// SPDX-License-Identifier: Apache-2.0
// Sequences in several data groups at once, each as if it were alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/bundled_model.h"
#include "tests/testing/golden.h"
#include "tests/testing/rank_world.h"
#include "tests/testing/sanitized.h"

namespace ringfleet::worker {
namespace {

using nlohmann::json;
using ringfleet::testing::BundledModel;
using ringfleet::testing::RankWorld;

// Of a slot, by its group's first rank; other ranks of the group have the same
// tokens, those of other groups none.
void Collect(const RankWorld& world, int group_size, uint32_t slots,
             const std::vector<v1::StepResult>& results,
             std::map<uint32_t, std::vector<uint32_t>>* tokens,
             std::map<uint32_t, v1::ScoreResult>* scores) {
  for (int rank = 0; rank < world.size(); ++rank) {
    const int first = rank / group_size * group_size;
    for (const v1::SlotResult& slot : results[rank].slots()) {
      EXPECT_EQ(static_cast<int>(slot.slot() / slots), world.data_group(rank));
      if (rank == first) {
        std::vector<uint32_t>& all = (*tokens)[slot.slot()];
        all.insert(all.end(), slot.tokens().begin(), slot.tokens().end());
        (*scores)[slot.slot()].MergeFrom(slot.score());
        continue;
      }
      EXPECT_FALSE(slot.has_score());
      for (const v1::SlotResult& other : results[first].slots()) {
        if (other.slot() != slot.slot()) continue;
        EXPECT_THAT(slot.tokens(), ::testing::ElementsAreArray(other.tokens()));
      }
    }
  }
}

class DataGroupsTest : public ::testing::TestWithParam<cluster::MeshShape> {
 protected:
  static constexpr int kSlots = 2;
  const std::string folder_ = BundledModel("tiny-v3");
  const json golden_ = testing::ReadGolden(folder_);
};

// Every golden prompt in a slot of another group, begun and continued at random
// moments, so that at times a group has nothing to do.
TEST_P(DataGroupsTest, GreedyContinuationsOfUnevenSequences) {
  const cluster::MeshShape mesh = GetParam();
  RankWorld world(folder_, {.mesh = mesh, .slots = kSlots});
  std::mt19937 random(5);
  struct Sequence {
    std::vector<uint32_t> ids;
    uint32_t slot;
    uint32_t left;  // Of the prompt.
    size_t wanted;
    bool admitted = false;
  };
  std::vector<Sequence> sequences;
  std::map<uint32_t, json> golden;
  for (const json& expected : golden_["cases"]) {
    const auto index = static_cast<uint32_t>(sequences.size());
    if (index == static_cast<uint32_t>(mesh.data * kSlots)) break;
    // Group by group, and round again.
    const uint32_t slot = index % mesh.data * kSlots + index / mesh.data;
    const std::vector<uint32_t> ids = testing::PromptOf(expected);
    golden[slot] = expected;
    const size_t all = expected["greedy_ids"].size();
    sequences.push_back({ids, slot, static_cast<uint32_t>(ids.size()),
                         testing::kSanitized ? std::min<size_t>(all, 4) : all});
  }
  std::map<uint32_t, std::vector<uint32_t>> tokens;
  std::map<uint32_t, v1::ScoreResult> scores;
  while (true) {
    v1::StepPlan plan;
    bool any = false;
    for (Sequence& sequence : sequences) {
      if (tokens[sequence.slot].size() >= sequence.wanted) continue;
      any = true;
      if (random() % 3 == 0) continue;
      if (!sequence.admitted) {
        v1::Admission* admission = plan.add_admissions();
        admission->set_slot(sequence.slot);
        admission->mutable_prompt_ids()->Add(sequence.ids.begin(),
                                             sequence.ids.end());
        admission->set_max_tokens(static_cast<uint32_t>(sequence.wanted));
        sequence.admitted = true;
      }
      if (sequence.left > 0) {
        const uint32_t count = std::min<uint32_t>(
            sequence.left, 1 + static_cast<uint32_t>(random() % 150));
        v1::PrefillSpan* span = plan.add_prefills();
        span->set_slot(sequence.slot);
        span->set_count(count);
        sequence.left -= count;
      } else {
        plan.add_decodes()->set_slot(sequence.slot);
      }
    }
    if (!any) break;
    Collect(world, mesh.group_size(), kSlots, world.Step(plan), &tokens,
            &scores);
    ASSERT_FALSE(HasFailure());
  }
  for (const auto& [slot, expected] : golden) {
    SCOPED_TRACE(::testing::Message() << "slot " << slot);
    testing::ExpectGreedy(expected, tokens[slot]);
  }
}

// A sequence ends by a token of its own, which only its group knows: the plan
// that was made before its end makes all groups take the same steps, and the
// next sequence, in another group, is as it should be.
TEST_P(DataGroupsTest, AnEndThatOnlyOneGroupKnows) {
  const json& expected = golden_["cases"][0];
  const auto greedy = expected["greedy_ids"].get<std::vector<uint32_t>>();
  RankWorld world(folder_, {.mesh = GetParam(), .slots = kSlots});
  const std::vector<uint32_t> ids = testing::PromptOf(expected);
  std::map<uint32_t, std::vector<uint32_t>> tokens;
  std::map<uint32_t, v1::ScoreResult> scores;
  const auto step = [&](const v1::StepPlan& plan) {
    Collect(world, GetParam().group_size(), kSlots, world.Step(plan), &tokens,
            &scores);
  };
  const auto admit = [&](uint32_t slot, uint32_t stop, uint32_t count) {
    v1::StepPlan plan;
    v1::Admission* admission = plan.add_admissions();
    admission->set_slot(slot);
    admission->mutable_prompt_ids()->Add(ids.begin(), ids.end());
    admission->set_max_tokens(count);
    admission->add_stop_ids(stop);
    v1::PrefillSpan* span = plan.add_prefills();
    span->set_slot(slot);
    span->set_count(static_cast<uint32_t>(ids.size()));
    return plan;
  };
  step(admit(0, greedy[0], 50));
  v1::StepPlan surplus;
  surplus.add_decodes()->set_slot(0);
  step(surplus);
  v1::StepPlan next = admit(kSlots, greedy[0] + 1, 3);
  next.add_releases(0);
  step(next);
  for (int i = 0; i < 2; ++i) {
    v1::StepPlan decode;
    decode.add_decodes()->set_slot(kSlots);
    step(decode);
  }
  EXPECT_THAT(tokens[0], ::testing::ElementsAre(greedy[0]));
  testing::ExpectGreedy(expected, tokens[kSlots]);
  EXPECT_EQ(tokens[kSlots].size(), 3u);
}

// Two groups score one prompt each at once, a third two of them: with hidden
// states, the multi-token prediction layer and a plain copy to compare with.
TEST_P(DataGroupsTest, ScoresAtOnce) {
  const cluster::MeshShape mesh = GetParam();
  RankWorld world(folder_, {.mesh = mesh, .slots = kSlots, .reference = true});
  std::map<uint32_t, json> golden;
  v1::StepPlan plan;
  uint32_t slot = 0;
  for (const json& expected : golden_["cases"]) {
    if (slot == static_cast<uint32_t>(mesh.data * kSlots)) break;
    const std::vector<uint32_t> ids = testing::PromptOf(expected);
    golden[slot] = expected;
    v1::Admission* admission = plan.add_admissions();
    admission->set_slot(slot);
    admission->mutable_prompt_ids()->Add(ids.begin(), ids.end());
    *admission->mutable_score() = testing::ScoreOptionsOf(expected);
    admission->mutable_score()->set_reference(slot == 0);
    v1::PrefillSpan* span = plan.add_prefills();
    span->set_slot(slot);
    span->set_count(static_cast<uint32_t>(ids.size()));
    slot += slot == 0 ? kSlots : 1;
  }
  std::map<uint32_t, std::vector<uint32_t>> tokens;
  std::map<uint32_t, v1::ScoreResult> scores;
  Collect(world, mesh.group_size(), kSlots, world.Step(plan), &tokens, &scores);
  for (const auto& [scored, expected] : golden) {
    SCOPED_TRACE(::testing::Message() << "slot " << scored);
    testing::ExpectScore(expected, scores[scored]);
  }
  EXPECT_EQ(scores[0].compared(), golden[0]["prompt_token_logprobs"].size());
  EXPECT_LT(scores[0].kl_sum(), 1e-6);
}

// All ranks count the tokens of all groups.
TEST_P(DataGroupsTest, ExpertsAreCountedOverGroups) {
  const cluster::MeshShape mesh = GetParam();
  RankWorld world(folder_, {.mesh = mesh, .slots = kSlots});
  const std::vector<uint32_t> ids = testing::PromptOf(golden_["cases"][0]);
  v1::StepPlan plan;
  for (const uint32_t slot : {0, kSlots}) {
    v1::Admission* admission = plan.add_admissions();
    admission->set_slot(slot);
    admission->mutable_prompt_ids()->Add(ids.begin(), ids.end());
    v1::PrefillSpan* span = plan.add_prefills();
    span->set_slot(slot);
    span->set_count(static_cast<uint32_t>(ids.size()));
  }
  world.Step(plan);
  for (int rank = 0; rank < world.size(); ++rank) {
    uint64_t layers = 0;
    for (const auto& layer : world.ExpertCounts(rank)) {
      if (layer.empty()) continue;
      ++layers;
      uint64_t sum = 0;
      for (const uint64_t count : layer) {
        EXPECT_EQ(count % 2, 0u);  // The same prompt twice.
        sum += count;
      }
      EXPECT_EQ(sum, 2 * ids.size() * world.spec().num_experts_per_tok);
    }
    EXPECT_GT(layers, 0u);
  }
}

// All ranks drop the same routes: a wide limit none, a tight one what does not
// fit, and the result is still near.
TEST_P(DataGroupsTest, CapacityIsCountedAlikeEverywhere) {
  const json& expected = golden_["cases"][0];
  const std::vector<uint32_t> ids = testing::PromptOf(expected);
  const auto mean_error = [&](const RankWorld& world,
                              const v1::ScoreResult& score) {
    for (int rank = 1; rank < world.size(); ++rank) {
      EXPECT_EQ(world.DroppedCounts(rank), world.DroppedCounts(0));
    }
    double error = 0;
    for (int i = 0; i < score.logprobs_size(); ++i) {
      error += std::abs(score.logprobs(i) -
                        expected["prompt_token_logprobs"][i].get<double>());
    }
    return error / score.logprobs_size();
  };
  const auto run = [&](double capacity, uint64_t* dropped) {
    RankWorld world(
        folder_,
        {.mesh = GetParam(), .slots = kSlots, .expert_capacity = capacity});
    const v1::ScoreResult score =
        ScorePrompt(world, ids, testing::ScoreOptionsOf(expected), 128);
    *dropped = 0;
    for (const uint64_t count : world.DroppedCounts(0)) *dropped += count;
    return mean_error(world, score);
  };
  uint64_t dropped = 0;
  EXPECT_LT(run(GetParam().num_coordinates(), &dropped), 1e-4);
  EXPECT_EQ(dropped, 0u);
  EXPECT_GT(run(0.5, &dropped), 1e-3);
  EXPECT_GT(dropped, 0u);
}

// A bfloat16 or int8 wire rounds what comes back, and nothing else changes.
TEST_P(DataGroupsTest, RoundedWires) {
  const json& expected = golden_["cases"][0];
  const std::vector<uint32_t> ids = testing::PromptOf(expected);
  for (const auto& [wire, bound] :
       {std::pair(cluster::Wire::kBf16, 0.1), {cluster::Wire::kInt8, 0.3}}) {
    RankWorld world(folder_,
                    {.mesh = GetParam(), .wire = wire, .slots = kSlots});
    const v1::ScoreResult score =
        ScorePrompt(world, ids, testing::ScoreOptionsOf(expected), 128);
    double error = 0;
    for (int i = 0; i < score.logprobs_size(); ++i) {
      error += std::abs(score.logprobs(i) -
                        expected["prompt_token_logprobs"][i].get<double>());
    }
    error /= score.logprobs_size();
    EXPECT_LT(error, bound);
    EXPECT_GT(error, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, DataGroupsTest,
                         ::testing::Values(cluster::MeshShape{2, 1, 1},
                                           cluster::MeshShape{3, 1, 1},
                                           cluster::MeshShape{2, 2, 1},
                                           cluster::MeshShape{2, 1, 2},
                                           cluster::MeshShape{2, 2, 2}),
                         [](const auto& mesh) {
                           return "data" + std::to_string(mesh.param.data) +
                                  "_expert" +
                                  std::to_string(mesh.param.expert) +
                                  "_tensor" + std::to_string(mesh.param.tensor);
                         });

}  // namespace
}  // namespace ringfleet::worker
