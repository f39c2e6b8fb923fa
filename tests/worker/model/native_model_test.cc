// SPDX-License-Identifier: Apache-2.0
// Models that are published in int4 and int8, whole: against their goldens in
// float32, and in the form in which they are published.
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gtest/gtest.h"
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

// Two implementations of these models differ by up to 2e-4 in a logit.
TEST_P(NativeModelTest, Float32HasTheGoldensProbabilities) {
  constexpr double kTolerance = 5e-4;
  for (const int tensor : {1, 2}) {
    RankWorld world(folder_, {.mesh = {.tensor = tensor}});
    for (const nlohmann::json& expected : golden_["cases"]) {
      const std::vector<uint32_t> ids = PromptOf(expected);
      if (testing::kSanitized && ids.size() > 64) continue;
      v1::ScoreOptions options;
      options.set_top(1);
      const v1::ScoreResult score = ScorePrompt(world, ids, options, 128);
      const nlohmann::json& want = expected["prompt_token_logprobs"];
      ASSERT_EQ(score.logprobs_size(), static_cast<int>(want.size()));
      for (int i = 0; i < score.logprobs_size(); ++i) {
        EXPECT_NEAR(score.logprobs(i), want[i].get<double>(), kTolerance)
            << ids.size() << " ids, position " << i;
      }
      ASSERT_EQ(score.top_ids_size(), 1);
      EXPECT_EQ(score.top_ids(0), expected["top_ids"][0].get<uint32_t>());
      EXPECT_NEAR(score.top_logprobs(0),
                  expected["top_logprobs"][0].get<double>(), kTolerance);
    }
  }
}

// Published codes are not rounded again, so no form is nearer.
TEST_P(NativeModelTest, NativeDivergesNoMoreThanInt8) {
  const double native = Divergence({.form = WeightForm::kInt8, .native = true});
  const double int8 = Divergence({.form = WeightForm::kInt8});
  EXPECT_GT(native, 0);
  EXPECT_LE(native, int8);
  std::printf("%s: %.5f nats native, %.5f as int8\n", GetParam().c_str(),
              native, int8);
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
