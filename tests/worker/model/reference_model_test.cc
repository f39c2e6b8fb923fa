// SPDX-License-Identifier: Apache-2.0
// The float64 forward pass that other tests trust, against the golden values
// of a third implementation.
#include "tests/testing/reference_model.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

namespace ringfleet::testing {
namespace {

using nlohmann::json;

// Model, attention in the space of the latents.
class ReferenceModelTest
    : public ::testing::TestWithParam<std::tuple<std::string, bool>> {};

// Prompts up to 140 tokens: the longer ones take seconds in float64.
TEST_P(ReferenceModelTest, MatchesGoldenValues) {
  const auto& [name, absorbs] = GetParam();
  const std::string folder = RINGFLEET_TEST_MODELS "/" + name;
  std::ifstream file(folder + "/golden.json");
  const json golden = json::parse(file);
  ReferenceModel model(folder, kernels::WeightForm::kF32, absorbs);
  for (const json& expected : golden["cases"]) {
    const auto ids = expected["prompt_ids"].get<std::vector<uint32_t>>();
    if (ids.size() > 140) continue;
    SCOPED_TRACE(::testing::Message() << ids.size() << " prompt tokens");
    const ReferenceOutput output = model.Evaluate(ids);
    const json& logprobs = expected["prompt_token_logprobs"];
    ASSERT_EQ(logprobs.size(), ids.size() - 1);
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      EXPECT_NEAR(LogProbability(output.logits[i], ids[i + 1]),
                  logprobs[i].get<double>(), 1e-4)
          << "position " << i;
    }
    const json& head = expected["last_logits_head"];
    for (size_t i = 0; i < head.size(); ++i) {
      EXPECT_NEAR(output.logits.back()[i], head[i].get<double>(), 1e-4);
    }
    if (expected.contains("hidden_states")) {
      const json& states = expected["hidden_states"];
      ASSERT_EQ(output.hidden.size(), states.size());
      for (size_t layer = 0; layer < states.size(); ++layer) {
        // float32 rounding of a layer, and the goldens' five decimals.
        const double bound =
            1e-5 * states[layer]["last_token_norm"].get<double>() + 1e-5;
        for (size_t i = 0; i < 8; ++i) {
          EXPECT_NEAR(output.hidden[layer].back()[i],
                      states[layer]["last_token_head"][i].get<double>(), bound)
              << "layer " << layer << " element " << i;
        }
      }
    }
    if (expected.contains("mtp_top_logprobs")) {
      ASSERT_EQ(output.mtp_logits.size(), expected["mtp_top_ids"].size());
      for (size_t i = 0; i < output.mtp_logits.size(); ++i) {
        EXPECT_NEAR(LogProbability(output.mtp_logits[i],
                                   expected["mtp_top_ids"][i].get<uint32_t>()),
                    expected["mtp_top_logprobs"][i].get<double>(), 1e-4);
      }
    }
    const double gap = expected["min_route_gap"].get<double>();
    EXPECT_LE(output.min_route_gap, gap * 1.02 + 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, ReferenceModelTest,
    ::testing::Combine(::testing::Values("tiny-v2", "tiny-v2-lite", "tiny-v3"),
                       ::testing::Bool()),
    [](const auto& info) {
      std::string name = std::get<0>(info.param) +
                         (std::get<1>(info.param) ? "_absorbed" : "_expanded");
      for (char& c : name) c = c == '-' ? '_' : c;
      return name;
    });

}  // namespace
}  // namespace ringfleet::testing
