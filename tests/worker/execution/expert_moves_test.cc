// SPDX-License-Identifier: Apache-2.0
// Wherever the copies of experts are, and while they move, the model stays the
// one of the goldens.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "cluster/model/prefill_strategy.h"
#include "tests/testing/bundled_model.h"
#include "tests/testing/golden.h"
#include "tests/testing/random_layout.h"
#include "tests/testing/rank_world.h"
#include "tests/testing/sanitized.h"
#include "worker/execution/expert_migration.h"

namespace ringfleet::worker {
namespace {

using cluster::ExpertLayout;
using nlohmann::json;
using ringfleet::testing::BundledModel;
using ringfleet::testing::RankWorld;
using ringfleet::testing::RankWorldOptions;

struct LayoutCase {
  std::string model;
  cluster::MeshShape mesh;
  v1::PrefillStrategy strategy = v1::PREFILL_STRATEGY_REPLICATED;
  std::string golden = "golden.json";
  testing::GoldenTolerance tolerance;
};

class ExpertMovesTest : public ::testing::TestWithParam<LayoutCase> {
 protected:
  ExpertMovesTest()
      : folder_(BundledModel(GetParam().model)),
        golden_(testing::ReadGolden(folder_, GetParam().golden)) {}

  RankWorldOptions Options() const {
    return {.mesh = GetParam().mesh, .prefill_strategy = GetParam().strategy};
  }

  // Every layer of the world's anew, the multi-token prediction layer too.
  ExpertLayout RandomLayout(const RankWorld& world) {
    ExpertLayout layout = world.experts();
    for (int layer = 0; layer < layout.num_layers(); ++layer) {
      const bool moe = layer == world.spec().num_hidden_layers
                           ? world.spec().num_nextn_predict_layers > 0
                           : world.spec().IsMoeLayer(layer);
      if (moe) testing::RandomizeLayer(random_, layer, &layout);
    }
    return layout;
  }

  const std::string folder_;
  const json golden_;
  std::mt19937_64 random_{20261122};
};

TEST_P(ExpertMovesTest, GoldensHoldWhereverExpertsAre) {
  RankWorldOptions options = Options();
  {
    RankWorld plain(folder_, options);
    options.experts = RandomLayout(plain).Difference(plain.experts());
  }
  RankWorld world(folder_, options);
  for (const json& expected : golden_["cases"]) {
    const std::vector<uint32_t> ids = testing::PromptOf(expected);
    SCOPED_TRACE(::testing::Message() << ids.size() << " prompt tokens");
    testing::ExpectScore(
        expected,
        ScorePrompt(world, ids, testing::ScoreOptionsOf(expected), 128),
        GetParam().tolerance);
  }
}

// A new layout before every token.
TEST_P(ExpertMovesTest, GoldensHoldWhileExpertsMove) {
  RankWorld world(folder_, Options());
  int moves = testing::kSanitized ? 6 : 50;
  for (const json& expected : golden_["cases"]) {
    if (moves == 0) break;
    const std::vector<uint32_t> ids = testing::PromptOf(expected);
    const int count = static_cast<int>(expected["greedy_ids"].size());
    std::vector<uint32_t> generated;
    while (static_cast<int>(generated.size()) < count && moves > 0) {
      v1::StepPlan plan;
      if (generated.empty()) {
        v1::Admission* admission = plan.add_admissions();
        admission->mutable_prompt_ids()->Add(ids.begin(), ids.end());
        admission->set_max_tokens(count);
        plan.add_prefills()->set_count(static_cast<uint32_t>(ids.size()));
      } else {
        plan.add_decodes()->set_slot(0);
      }
      world.MoveExperts(RandomLayout(world));
      --moves;
      const std::vector<v1::StepResult> results = world.Step(plan);
      ASSERT_EQ(results[0].slots_size(), 1);
      ASSERT_EQ(results[0].slots(0).tokens_size(), 1);
      generated.push_back(results[0].slots(0).tokens(0));
    }
    testing::ExpectGreedy(expected, generated);
    v1::StepPlan release;
    release.add_releases(0);
    world.Step(release);
  }
  EXPECT_EQ(moves, 0);
}

std::vector<LayoutCase> LayoutCases() {
  std::vector<LayoutCase> cases;
  // All that have more than one coordinate for an expert, of 2, 4 and 6 ranks.
  std::vector<cluster::MeshShape> meshes;
  for (const int world : {2, 4, 6}) {
    for (int data = 1; data <= world; ++data) {
      for (int expert = 1; data * expert <= world; ++expert) {
        const int tensor = world / (data * expert);
        if (data * expert * tensor != world || tensor == world) continue;
        meshes.push_back({data, expert, tensor});
      }
    }
  }
  for (const char* model : {"tiny-v2", "tiny-v2-lite", "tiny-v3"}) {
    // One model is accessed as the next is.
    if (testing::kSanitized && cases.size() > 0) break;
    for (const cluster::MeshShape& mesh : meshes) {
      // What differs between models is no part of how experts are spread.
      if (testing::kSanitized
              ? mesh.world_size() != 4
              : model != std::string("tiny-v3") && mesh.world_size() > 2) {
        continue;
      }
      cases.push_back({model, mesh});
    }
    cases.push_back({model,
                     {.expert = 2, .tensor = 2},
                     v1::PREFILL_STRATEGY_SEQUENCE_PARALLEL});
    cases.push_back({model,
                     {.data = 2, .expert = 1, .tensor = 2},
                     v1::PREFILL_STRATEGY_SEQUENCE_PARALLEL});
    cases.push_back({model,
                     {.expert = 3, .tensor = 1},
                     v1::PREFILL_STRATEGY_WEIGHT_GATHER});
  }
  return cases;
}

std::string LayoutCaseName(const ::testing::TestParamInfo<LayoutCase>& info) {
  std::string name = info.param.model;
  for (char& c : name) {
    if (c == '-') c = '_';
  }
  return name + "_data" + std::to_string(info.param.mesh.data) + "_expert" +
         std::to_string(info.param.mesh.expert) + "_tensor" +
         std::to_string(info.param.mesh.tensor) + "_" +
         std::string(cluster::PrefillStrategyName(info.param.strategy));
}

INSTANTIATE_TEST_SUITE_P(Models, ExpertMovesTest,
                         ::testing::ValuesIn(LayoutCases()), LayoutCaseName);

std::vector<LayoutCase> SoakFamilyLayouts() {
  std::vector<LayoutCase> cases;
  for (const auto& [model, golden] :
       {std::pair("tiny-glm-flash", "golden.json"),
        std::pair("tiny-glm-dsa", "golden_dense.json"),
        std::pair("tiny-v32", "golden_dense.json"),
        std::pair("tiny-kimi", "golden.json"),
        std::pair("tiny-kimi-k25", "golden.json"),
        std::pair("tiny-int8-channel", "golden.json"),
        std::pair("tiny-mistral4", "golden.json")}) {
    cases.push_back({model,
                     {.data = 2, .expert = 2, .tensor = 1},
                     v1::PREFILL_STRATEGY_SEQUENCE_PARALLEL,
                     golden,
                     testing::kWideGoldenTolerance});
    cases.push_back({model,
                     {.expert = 2, .tensor = 2},
                     v1::PREFILL_STRATEGY_WEIGHT_GATHER,
                     golden,
                     testing::kWideGoldenTolerance});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(SoakFamilies, ExpertMovesTest,
                         ::testing::ValuesIn(SoakFamilyLayouts()),
                         LayoutCaseName);

TEST(ExpertMigrationTest, OnlyWhatIsLackingIsLoaded) {
  ExpertLayout now(3, 4, 2);
  ExpertLayout next = now;
  ASSERT_TRUE(next.SetLayer(1, {{0, 3}, {1, 2, 3}}).ok());
  EXPECT_EQ(MissingExperts(now, next, 0),
            (std::vector<MissingExpert>{{.layer = 1, .expert = 3}}));
  EXPECT_EQ(MissingExperts(now, next, 1),
            (std::vector<MissingExpert>{{.layer = 1, .expert = 1}}));
  EXPECT_TRUE(MissingExperts(next, next, 0).empty());
}

}  // namespace
}  // namespace ringfleet::worker
