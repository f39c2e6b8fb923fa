// SPDX-License-Identifier: Apache-2.0
// The whole model against an independent implementation.
#include "tests/testing/golden.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cluster/model/prefill_strategy.h"
#include "gtest/gtest.h"
#include "tests/testing/bundled_model.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/rank_world.h"
#include "tests/testing/sanitized.h"

namespace ringfleet::worker {
namespace {

using nlohmann::json;
using ringfleet::testing::ExpectGreedy;
using ringfleet::testing::ExpectScore;
using ringfleet::testing::GenerateTokens;
using ringfleet::testing::PromptOf;
using ringfleet::testing::RankWorld;
using ringfleet::testing::ScoreOptionsOf;
using ringfleet::testing::ScorePrompt;

struct Case {
  std::string model;
  cluster::MeshShape mesh;
  v1::PrefillStrategy strategy = v1::PREFILL_STRATEGY_REPLICATED;
  bool fused = false;  // Exchanges beside products, of any number of rows.
  std::string golden = "golden.json";
  ringfleet::testing::GoldenTolerance tolerance;

  size_t FuseRows() const { return fused ? 0 : ~size_t{0}; }
};

class GoldenTest : public ::testing::TestWithParam<Case> {
 protected:
  GoldenTest()
      : folder_(testing::BundledModel(GetParam().model)),
        golden_(testing::ReadGolden(folder_, GetParam().golden)) {
    if (GetParam().golden == "golden_mscale.json") ScaleSoftmax();
  }

  // Reads a copy of the model whose params.json says apply_scale.
  void ScaleSoftmax() {
    std::filesystem::copy(folder_, copy_.path());
    std::ifstream file(folder_ + "/params.json");
    json params = json::parse(file);
    params["yarn"]["apply_scale"] = true;
    std::filesystem::remove(copy_.File("params.json"));
    testing::WriteFile(copy_.File("params.json"), params.dump());
    folder_ = copy_.path();
  }

  const testing::TempDir copy_;
  std::string folder_;
  const json golden_;
};

TEST_P(GoldenTest, PromptProbabilitiesAndHiddenStates) {
  RankWorld world(folder_, {.mesh = GetParam().mesh,
                            .prefill_strategy = GetParam().strategy,
                            .fuse_rows = GetParam().FuseRows()});
  for (const json& expected : golden_["cases"]) {
    const std::vector<uint32_t> ids = PromptOf(expected);
    SCOPED_TRACE(::testing::Message() << ids.size() << " prompt tokens");
    ExpectScore(expected,
                ScorePrompt(world, ids, ScoreOptionsOf(expected), 128),
                GetParam().tolerance);
  }
}

TEST_P(GoldenTest, GreedyContinuation) {
  RankWorld world(folder_, {.mesh = GetParam().mesh,
                            .prefill_strategy = GetParam().strategy,
                            .fuse_rows = GetParam().FuseRows()});
  for (const json& expected : golden_["cases"]) {
    const size_t all = expected["greedy_ids"].size();
    // One more token accesses nothing that the others did not.
    const int count =
        static_cast<int>(testing::kSanitized ? std::min<size_t>(all, 6) : all);
    const testing::GeneratedTokens generated = GenerateTokens(
        world, PromptOf(expected), v1::SamplingParams(), count, 128);
    ASSERT_EQ(generated.ids.size(), static_cast<size_t>(count));
    ExpectGreedy(expected, generated.ids);
  }
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const char* model : {"tiny-v2", "tiny-v2-lite", "tiny-v3"}) {
    for (int world : {1, 2, 3, 4}) {
      // What 2 and 4 ranks do differs from the others in no memory access.
      if (testing::kSanitized && world % 2 == 0) continue;
      cases.push_back({model, {.data = 1, .expert = 1, .tensor = world}});
    }
    // Nor does the next model differ from the one before in how ranks share it.
    if (testing::kSanitized && cases.size() > 3) continue;
    cases.push_back({model, {.data = 1, .expert = 2, .tensor = 1}});
    cases.push_back({model, {.data = 3, .expert = 1, .tensor = 1}});
    cases.push_back({model,
                     {.data = 2, .expert = 2, .tensor = 2},
                     v1::PREFILL_STRATEGY_SEQUENCE_PARALLEL,
                     /*fused=*/true});
    cases.push_back({model,
                     {.data = 1, .expert = 1, .tensor = 3},
                     v1::PREFILL_STRATEGY_SEQUENCE_PARALLEL});
    cases.push_back({model,
                     {.data = 1, .expert = 2, .tensor = 2},
                     v1::PREFILL_STRATEGY_SEQUENCE_PARALLEL,
                     /*fused=*/true});
    cases.push_back({model,
                     {.data = 1, .expert = 1, .tensor = 3},
                     v1::PREFILL_STRATEGY_WEIGHT_GATHER});
    cases.push_back({model,
                     {.data = 1, .expert = 2, .tensor = 2},
                     v1::PREFILL_STRATEGY_WEIGHT_GATHER});
  }
  // More ranks than heads or columns divide into.
  cases.push_back({"tiny-v2", {.data = 1, .expert = 1, .tensor = 7}});
  cases.push_back({"tiny-v2-lite", {.data = 1, .expert = 5, .tensor = 1}});
  cases.push_back({"tiny-v3", {.data = 1, .expert = 4, .tensor = 2}});
  return cases;
}

// The families beside DeepSeek's, whose weights are random.
struct FamilyGolden {
  const char* model;
  const char* golden;
};
constexpr FamilyGolden kFamilies[] = {
    {"tiny-glm-flash", "golden.json"}, {"tiny-glm-dsa", "golden_dense.json"},
    {"tiny-v32", "golden_dense.json"}, {"tiny-kimi", "golden.json"},
    {"tiny-kimi-k25", "golden.json"},  {"tiny-int8-channel", "golden.json"},
    {"tiny-mistral4", "golden.json"},  {"tiny-mistral4", "golden_mscale.json"},
};

Case FamilyCase(const FamilyGolden& family, cluster::MeshShape mesh,
                v1::PrefillStrategy strategy, bool fused = false) {
  return {.model = family.model,
          .mesh = mesh,
          .strategy = strategy,
          .fused = fused,
          .golden = family.golden,
          .tolerance = ringfleet::testing::kWideGoldenTolerance};
}

std::vector<Case> FamilyCases() {
  std::vector<Case> cases;
  for (const FamilyGolden& family : kFamilies) {
    cases.push_back(FamilyCase(family, {.data = 1, .expert = 1, .tensor = 1},
                               v1::PREFILL_STRATEGY_REPLICATED));
    // Other divisions make no other memory accesses.
    if (testing::kSanitized) continue;
    cases.push_back(FamilyCase(family, {.data = 1, .expert = 1, .tensor = 3},
                               v1::PREFILL_STRATEGY_SEQUENCE_PARALLEL));
    // Published codes that travel.
    const std::string model = family.model;
    if (model != "tiny-kimi" && model != "tiny-int8-channel") continue;
    cases.push_back(FamilyCase(family, {.data = 1, .expert = 1, .tensor = 2},
                               v1::PREFILL_STRATEGY_WEIGHT_GATHER));
  }
  return cases;
}

std::vector<Case> SoakFamilyCases() {
  std::vector<Case> cases;
  for (const FamilyGolden& family : kFamilies) {
    for (const int world : {1, 2, 3, 4}) {
      for (const auto strategy : {v1::PREFILL_STRATEGY_REPLICATED,
                                  v1::PREFILL_STRATEGY_SEQUENCE_PARALLEL,
                                  v1::PREFILL_STRATEGY_WEIGHT_GATHER}) {
        cases.push_back(FamilyCase(
            family, {.data = 1, .expert = 1, .tensor = world}, strategy));
      }
    }
    cases.push_back(FamilyCase(family, {.data = 3, .expert = 1, .tensor = 1},
                               v1::PREFILL_STRATEGY_REPLICATED));
    cases.push_back(FamilyCase(family, {.data = 2, .expert = 2, .tensor = 2},
                               v1::PREFILL_STRATEGY_SEQUENCE_PARALLEL,
                               /*fused=*/true));
    cases.push_back(FamilyCase(family, {.data = 1, .expert = 2, .tensor = 2},
                               v1::PREFILL_STRATEGY_WEIGHT_GATHER));
    cases.push_back(FamilyCase(family, {.data = 1, .expert = 5, .tensor = 1},
                               v1::PREFILL_STRATEGY_SEQUENCE_PARALLEL));
  }
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  std::string name = info.param.model;
  for (char& c : name) {
    if (c == '-') c = '_';
  }
  return name + "_data" + std::to_string(info.param.mesh.data) + "_expert" +
         std::to_string(info.param.mesh.expert) + "_tensor" +
         std::to_string(info.param.mesh.tensor) + "_" +
         std::string(cluster::PrefillStrategyName(info.param.strategy)) +
         (info.param.fused ? "_fused" : "") +
         (info.param.golden == "golden_mscale.json" ? "_mscale" : "");
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest, ::testing::ValuesIn(AllCases()),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Families, GoldenTest,
                         ::testing::ValuesIn(FamilyCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(SoakFamilies, GoldenTest,
                         ::testing::ValuesIn(SoakFamilyCases()), CaseName);

}  // namespace
}  // namespace ringfleet::worker
