// SPDX-License-Identifier: Apache-2.0
// Models that are published in int4 and int8, whole, in the form in which they
// are published.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "cluster/model/expert_layout.h"
#include "gtest/gtest.h"
#include "kernels/isa.h"
#include "tests/testing/bundled_model.h"
#include "tests/testing/golden.h"
#include "tests/testing/rank_world.h"
#include "tests/testing/sanitized.h"

namespace ringfleet::worker {
namespace {

using kernels::WeightForm;
using ringfleet::testing::BundledModel;
using ringfleet::testing::PromptOf;
using ringfleet::testing::RankWorld;
using ringfleet::testing::RankWorldOptions;
using ringfleet::testing::ReadGolden;
using ringfleet::testing::ScorePrompt;

class NativeModelTest : public ::testing::TestWithParam<std::string> {
 protected:
  NativeModelTest()
      : folder_(BundledModel(GetParam())), golden_(ReadGolden(folder_)) {}

  // The divergence from float32 in nats, over all positions of the prompts.
  double Divergence(RankWorldOptions options) {
    options.reference = true;
    RankWorld world(folder_, options);
    v1::ScoreOptions score_options;
    score_options.set_reference(true);
    double sum = 0;
    for (const nlohmann::json& expected : golden_["cases"]) {
      const std::vector<uint32_t> ids = PromptOf(expected);
      if (ids.size() < 2 || (testing::kSanitized && ids.size() > 64)) continue;
      sum += ScorePrompt(world, ids, score_options, 128).kl_sum();
    }
    return sum;
  }

  const std::string folder_;
  const nlohmann::json golden_;
};

// Published codes are not rounded again, so no form is nearer.
TEST_P(NativeModelTest, NativeDivergesNoMoreThanInt8) {
  const kernels::Isa best = kernels::CurrentIsa();
  const absl::Cleanup restore = [best] { kernels::ForceIsa(best); };
  for (const kernels::Isa isa : kernels::SupportedIsas()) {
    if (testing::kSanitized && isa != best) continue;
    kernels::ForceIsa(isa);
    const double native =
        Divergence({.form = WeightForm::kInt8, .native = true});
    const double int8 = Divergence({.form = WeightForm::kInt8});
    EXPECT_GT(native, 0);
    EXPECT_LE(native, int8) << kernels::IsaName(isa);
    std::printf("%s by %s: %.5f nats native, %.5f as int8\n",
                GetParam().c_str(), std::string(kernels::IsaName(isa)).c_str(),
                native, int8);
  }
}

// Codes that travel are those that stay. Only sums have another order, which
// now and then rounds an activation to the code beside: most short prompts are
// spared. Attention is absorbed, because its other form depends on the rows
// that a rank has.
TEST_P(NativeModelTest, GatheredWeightsAreThoseOfTheRanks) {
  constexpr int kPrompts = 40;
  constexpr int kLength = 4;  // Two rows for each rank.
  RankWorldOptions options = {
      .mesh = {.tensor = 2},
      .form = WeightForm::kInt8,
      .native = true,
      .prefill_strategy = v1::PREFILL_STRATEGY_REPLICATED,
      .reproducible = true};
  RankWorld replicated(folder_, options);
  options.prefill_strategy = v1::PREFILL_STRATEGY_WEIGHT_GATHER;
  RankWorld gathered(folder_, options);
  const std::vector<uint32_t> all = PromptOf(golden_["cases"].back());
  ASSERT_GE(all.size(), static_cast<size_t>(kPrompts * kLength));
  int equal = 0;
  for (int i = 0; i < kPrompts; ++i) {
    const auto first = all.begin() + i * kLength;
    const std::vector<uint32_t> ids(first, first + kLength);
    const v1::ScoreResult a = ScorePrompt(replicated, ids, {}, kLength);
    const v1::ScoreResult b = ScorePrompt(gathered, ids, {}, kLength);
    ASSERT_EQ(a.logprobs_size(), kLength - 1);
    ASSERT_EQ(b.logprobs_size(), kLength - 1);
    double worst = 0;
    for (int j = 0; j < kLength - 1; ++j) {
      worst = std::max<double>(worst, std::abs(a.logprobs(j) - b.logprobs(j)));
    }
    if (worst < 1e-4) ++equal;
  }
  EXPECT_GT(equal, kPrompts / 2);
  std::printf("%s: %d of %d prompts are equal\n", GetParam().c_str(), equal,
              kPrompts);
}

// Experts that have moved are those of a world that has them there from the
// start, bit for bit.
TEST_P(NativeModelTest, ExpertsMoveAsTheyAre) {
  RankWorldOptions options = {.mesh = {.expert = 2, .tensor = 2},
                              .form = WeightForm::kInt8,
                              .native = true};
  RankWorld moved(folder_, options);
  cluster::ExpertLayout layout = moved.experts();
  for (int layer = 0; layer < moved.spec().num_hidden_layers; ++layer) {
    if (!moved.spec().IsMoeLayer(layer)) continue;
    const auto first = layout.Held(layer, 0);
    const auto second = layout.Held(layer, 1);
    ASSERT_TRUE(layout
                    .SetLayer(layer, {{second.begin(), second.end()},
                                      {first.begin(), first.end()}})
                    .ok());
  }
  options.experts = layout.Difference(moved.experts());
  RankWorld placed(folder_, options);
  moved.MoveExperts(layout);
  const std::vector<uint32_t> ids = PromptOf(golden_["cases"][2]);
  const v1::ScoreResult a = ScorePrompt(moved, ids, {}, 128);
  const v1::ScoreResult b = ScorePrompt(placed, ids, {}, 128);
  ASSERT_EQ(a.logprobs_size(), static_cast<int>(ids.size()) - 1);
  ASSERT_EQ(b.logprobs_size(), a.logprobs_size());
  for (int i = 0; i < a.logprobs_size(); ++i) {
    EXPECT_EQ(a.logprobs(i), b.logprobs(i)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, NativeModelTest,
                         ::testing::Values("tiny-kimi", "tiny-int8-channel"),
                         [](const auto& info) {
                           return info.param == "tiny-kimi"
                                      ? "tiny_kimi"
                                      : "tiny_int8_channel";
                         });

}  // namespace
}  // namespace ringfleet::worker
