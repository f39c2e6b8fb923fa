// SPDX-License-Identifier: Apache-2.0
// Compares the outputs of a model with golden.json of a bundled checkpoint. The
// goldens are float32 outputs of an independent implementation with equal
// weights.
#ifndef RINGFLEET_TESTS_TESTING_GOLDEN_H_
#define RINGFLEET_TESTS_TESTING_GOLDEN_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "protos/worker.pb.h"

namespace ringfleet::testing {

// Largest difference of a log-probability. Two implementations that sum in
// float32 in different orders differ by about 1e-4 on these models.
inline constexpr double kGoldenLogprobTolerance = 2e-4;
// Largest difference of a hidden state, relative to the layer's L2 norm. Covers
// sqrt(hidden_size) roundings of 2^-24 in each of a few layers.
inline constexpr double kGoldenHiddenTolerance = 1e-5;

// The largest differences from a golden.
struct GoldenTolerance {
  double logprob = kGoldenLogprobTolerance;
  double hidden = kGoldenHiddenTolerance;
};
// For models whose logits reach 10: two implementations differ by 2e-4 there.
inline constexpr GoldenTolerance kWideGoldenTolerance = {.logprob = 5e-4,
                                                         .hidden = 3e-5};

// Least margin of a greedy token over the second token. Tokens are compared up
// to the first one with a smaller margin.
inline constexpr double kGoldenMargin = 1e-3;

// Returns golden.json, or another file of its form, of a checkpoint's folder.
inline nlohmann::json ReadGolden(const std::string& folder,
                                 const std::string& name = "golden.json") {
  std::ifstream file(folder + "/" + name);
  return nlohmann::json::parse(file);
}

inline std::vector<uint32_t> PromptOf(const nlohmann::json& expected) {
  return expected["prompt_ids"].get<std::vector<uint32_t>>();
}

// Returns the options that a score needs for ExpectScore.
inline v1::ScoreOptions ScoreOptionsOf(const nlohmann::json& expected) {
  v1::ScoreOptions options;
  options.set_top(8);
  options.set_hidden(expected.contains("hidden_states"));
  options.set_mtp(expected.contains("mtp_top_ids"));
  return options;
}

inline void ExpectScore(const nlohmann::json& expected,
                        const v1::ScoreResult& score,
                        const GoldenTolerance& tolerance = {}) {
  using nlohmann::json;
  const json& logprobs = expected["prompt_token_logprobs"];
  ASSERT_EQ(score.logprobs_size(), static_cast<int>(logprobs.size()));
  for (int i = 0; i < score.logprobs_size(); ++i) {
    EXPECT_NEAR(score.logprobs(i), logprobs[i].get<double>(), tolerance.logprob)
        << "position " << i;
  }
  ASSERT_EQ(score.top_ids_size(), 8);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(score.top_ids(i), expected["top_ids"][i].get<uint32_t>());
    EXPECT_NEAR(score.top_logprobs(i),
                expected["top_logprobs"][i].get<double>(), tolerance.logprob);
  }
  if (expected.contains("hidden_states")) {
    const json& states = expected["hidden_states"];
    ASSERT_EQ(score.hidden_states_size(), static_cast<int>(states.size()));
    for (int layer = 0; layer < score.hidden_states_size(); ++layer) {
      const double norm = states[layer]["last_token_norm"].get<double>();
      // The goldens are rounded to five decimals.
      const double bound = tolerance.hidden * norm + 0.6e-5;
      for (int i = 0; i < 8; ++i) {
        EXPECT_NEAR(score.hidden_states(layer).head(i),
                    states[layer]["last_token_head"][i].get<double>(), bound)
            << "layer " << layer << " element " << i;
      }
      EXPECT_NEAR(score.hidden_states(layer).norm(), norm,
                  tolerance.hidden * norm + 0.6e-4);
    }
  }
  if (expected.contains("mtp_top_ids")) {
    const json& mtp_ids = expected["mtp_top_ids"];
    ASSERT_EQ(score.mtp_top_ids_size(), static_cast<int>(mtp_ids.size()));
    for (int i = 0; i < score.mtp_top_ids_size(); ++i) {
      EXPECT_EQ(score.mtp_top_ids(i), mtp_ids[i].get<uint32_t>());
      EXPECT_NEAR(score.mtp_top_logprobs(i),
                  expected["mtp_top_logprobs"][i].get<double>(),
                  tolerance.logprob);
    }
  }
}

inline void ExpectGreedy(const nlohmann::json& expected,
                         const std::vector<uint32_t>& generated) {
  const auto greedy = expected["greedy_ids"].get<std::vector<uint32_t>>();
  ASSERT_LE(generated.size(), greedy.size());
  for (size_t i = 0; i < generated.size(); ++i) {
    if (generated[i] == greedy[i]) continue;
    EXPECT_LE(expected["greedy_gap"][i].get<double>(), kGoldenMargin)
        << expected["prompt_ids"].size() << " prompt tokens, token " << i
        << " is " << generated[i] << ", want " << greedy[i];
    break;  // The texts differ from here on.
  }
}

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_GOLDEN_H_
