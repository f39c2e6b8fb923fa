// SPDX-License-Identifier: Apache-2.0
// The bundled checkpoints through the command line, against golden.json:
// float32 outputs of an independent implementation on exactly their weights.
#include <algorithm>

#include "tests/integration/fleet_fixture.h"
#include "tests/testing/golden.h"

namespace ringfleet::integration {
namespace {

using ::testing::MatchesRegex;

// Two float32 implementations that sum in different orders agree to about
// 1e-4 on these models; 2e-4 leaves room for both.
constexpr double kLogprobTolerance = 2e-4;
// Of the layer's L2 norm; the goldens are rounded to five decimals.
constexpr double kHiddenTolerance = 1e-5;
constexpr double kMargin = 1e-3;

struct Case {
  const char* model;
  int world;
};

class GoldenCliTest : public FleetTest,
                      public ::testing::WithParamInterface<Case> {
 protected:
  void SetUp() override {
    if (kSanitized && GetParam().world > 2) {
      GTEST_SKIP() << "more processes than this build can run in time; the "
                      "unit tests cover the world size";
    }
    // The shortest and the longest prompt; worker tests run all of them.
    json golden = Golden(GetParam().model);
    const auto shorter = [](const json& a, const json& b) {
      return a["prompt_ids"].size() < b["prompt_ids"].size();
    };
    const auto [shortest, longest] = std::minmax_element(
        golden["cases"].begin(), golden["cases"].end(), shorter);
    cases_ = {*shortest, *longest};
  }

  Arguments Command(const char* verb) const {
    return {verb,
            "--model",
            Model(GetParam().model),
            "--local",
            std::to_string(GetParam().world),
            "--dtype",
            "f32",
            "--wire",
            "f32",
            "--json"};
  }

  std::vector<json> cases_;
};

void ExpectNear(const json& values, const json& expected, double tolerance) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(values[i].get<double>(), expected[i].get<double>(), tolerance)
        << "element " << i;
  }
}

TEST_P(GoldenCliTest, ScoreMatches) {
  for (const json& expected : cases_) {
    const json& prompt = expected["prompt_ids"];
    SCOPED_TRACE(::testing::Message() << prompt.size() << " prompt tokens");
    Arguments command = Command("score");
    command.insert(command.end(), {"--ids", JoinIds(prompt), "--top", "8"});
    const bool hidden = expected.contains("hidden_states");
    const bool mtp = expected.contains("mtp_top_ids");
    if (hidden) command.push_back("--hidden");
    if (mtp) command.push_back("--mtp");
    const Finished finished = Cli(command);
    ASSERT_EQ(finished.code, 0) << finished.errors;
    const json score = finished.document();
    EXPECT_EQ(score["ids"], prompt);
    ExpectNear(score["logprobs"], expected["prompt_token_logprobs"],
               kLogprobTolerance);
    EXPECT_EQ(score["top_ids"], expected["top_ids"]);
    ExpectNear(score["top_logprobs"], expected["top_logprobs"],
               kLogprobTolerance);
    if (mtp) {
      EXPECT_EQ(score["mtp_top_ids"], expected["mtp_top_ids"]);
      ExpectNear(score["mtp_top_logprobs"], expected["mtp_top_logprobs"],
                 kLogprobTolerance);
    }
    if (!hidden) continue;
    const json& states = expected["hidden_states"];
    ASSERT_EQ(score["hidden_states"].size(), states.size());
    for (size_t layer = 0; layer < states.size(); ++layer) {
      SCOPED_TRACE(::testing::Message() << "layer " << layer);
      const json& state = score["hidden_states"][layer];
      const double norm = states[layer]["last_token_norm"].get<double>();
      ExpectNear(state["last_token_head"], states[layer]["last_token_head"],
                 kHiddenTolerance * norm + 0.6e-5);
      EXPECT_NEAR(state["last_token_norm"].get<double>(), norm,
                  kHiddenTolerance * norm + 0.6e-4);
    }
  }
}

TEST_P(GoldenCliTest, GreedyTextMatches) {
  for (const json& expected : cases_) {
    const json& greedy = expected["greedy_ids"];
    Arguments command = Command("generate");
    command.insert(command.end(),
                   {"--prompt-ids", JoinIds(expected["prompt_ids"]), "--temp",
                    "0", "--ignore-eos", "-n", std::to_string(greedy.size())});
    const Finished finished = Cli(command);
    ASSERT_EQ(finished.code, 0) << finished.errors;
    const json ids = finished.document()["ids"];
    ASSERT_EQ(ids.size(), greedy.size());
    for (size_t i = 0; i < greedy.size(); ++i) {
      if (ids[i] == greedy[i]) continue;
      EXPECT_LE(expected["greedy_gap"][i].get<double>(), kMargin)
          << expected["prompt_ids"].size() << " prompt tokens, token " << i
          << " is " << ids[i] << ", want " << greedy[i];
      break;  // Another text from here on.
    }
  }
}

// Beyond index_topk positions dense attention is another model's.
class SparseModelCliTest : public FleetTest {
 protected:
  Finished Score(const json& prompt, Arguments more = {}) {
    Arguments command = {
        "score", "--model", Model("tiny-v32"), "--dtype", "f32",   "--wire",
        "f32",   "--json",  "--local",         "2",       "--ids", ""};
    command.back() = JoinIds(prompt);
    command.insert(command.end(), more.begin(), more.end());
    return Cli(command);
  }
};

TEST_F(SparseModelCliTest, RunsDenselyAsFarAsBothAreEqualOrAsTold) {
  const json golden =
      testing::ReadGolden(Model("tiny-v32"), "golden_dense.json");
  const auto with_length = [&golden](size_t length) {
    for (const json& expected : golden["cases"]) {
      if (expected["prompt_ids"].size() == length) return expected;
    }
    return json();
  };
  const json short_case = with_length(8);
  Finished finished = Score(short_case["prompt_ids"]);
  ASSERT_EQ(finished.code, 0) << finished.errors;
  ExpectNear(finished.document()["logprobs"],
             short_case["prompt_token_logprobs"],
             testing::kWideGoldenTolerance.logprob);
  EXPECT_THAT(finished.errors,
              MatchesRegex("note: attention is dense: sequences have at most "
                           "8 positions [^\n]*\n"));

  const json long_case = with_length(9);
  finished = Score(long_case["prompt_ids"]);
  EXPECT_EQ(finished.code, 2);
  // The note of this fleet stands before the error.
  const size_t error = finished.errors.find("ringfleet: ");
  ASSERT_NE(error, std::string::npos) << finished.errors;
  finished.errors.erase(0, error);
  for (const char* part :
       {"9 tokens", "at most 8", "index_topk", "--attention dense"}) {
    EXPECT_NE(finished.error_line().find(part), std::string::npos) << part;
  }

  finished = Score(long_case["prompt_ids"],
                   {"--attention", "dense", "--reproducible"});
  ASSERT_EQ(finished.code, 0) << finished.errors;
  ExpectNear(finished.document()["logprobs"],
             long_case["prompt_token_logprobs"],
             testing::kWideGoldenTolerance.logprob);
  EXPECT_THAT(finished.errors,
              MatchesRegex("note: attention is dense: beyond 8 positions "
                           "[^\n]*\nnote: reproducible: [^\n]*\n"));
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const char* model : {"tiny-v2", "tiny-v2-lite", "tiny-v3"}) {
    for (const int world : {1, 2, 3, 4}) cases.push_back({model, world});
  }
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  std::string name = info.param.model;
  std::replace(name.begin(), name.end(), '-', '_');
  return name + "_world" + std::to_string(info.param.world);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenCliTest, ::testing::ValuesIn(AllCases()),
                         CaseName);

class SamplingCliTest : public FleetTest {};

TEST_F(SamplingCliTest, SeededDrawsAreTheSameAtEveryWorldSize) {
  json first;
  for (const int world : {1, 2, 3, 5}) {
    if (kSanitized && world > 2) break;
    const Finished finished = Cli({"generate",
                                   "--model",
                                   Model(),
                                   "--local",
                                   std::to_string(world),
                                   "--dtype",
                                   "f32",
                                   "--wire",
                                   "f32",
                                   "-p",
                                   "def read",
                                   "-n",
                                   "40",
                                   "--temp",
                                   "0.8",
                                   "--top-p",
                                   "0.9",
                                   "--top-k",
                                   "50",
                                   "--min-p",
                                   "0.02",
                                   "--seed",
                                   "7",
                                   "--ignore-eos",
                                   "--json"});
    ASSERT_EQ(finished.code, 0) << finished.errors;
    const json ids = finished.document()["ids"];
    ASSERT_EQ(ids.size(), 40u);
    if (world == 1) first = ids;
    EXPECT_EQ(ids, first) << "world size " << world;
  }
}

}  // namespace
}  // namespace ringfleet::integration
