// SPDX-License-Identifier: Apache-2.0
// Sampling as a caller sets it: penalties, biases, words that are not written,
// ends, and the probabilities that are told.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/integration/fleet_fixture.h"

namespace ringfleet::integration {
namespace {

class SamplingTest : public HandFleet {
 protected:
  json Generate(Arguments more, int local = 1) {
    Arguments arguments = {"generate", "--model", Model(),
                           "--dtype",  "f32",     "--wire",
                           "f32",      "--local", std::to_string(local),
                           "-p",       "def f(",  "-n",
                           "24",       "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished run = Cli(arguments);
    EXPECT_EQ(run.code, 0) << run.errors;
    return run.code == 0 ? run.document() : json();
  }

  static int MostRepeated(const json& ids) {
    int most = 0;
    for (const json& id : ids) {
      most = std::max(most,
                      static_cast<int>(std::count(ids.begin(), ids.end(), id)));
    }
    return most;
  }
};

TEST_F(SamplingTest, ASeedGivesTheSameTextAtAnyWorldSize) {
  const Arguments settings = {"--temp",
                              "0.9",
                              "--seed",
                              "11",
                              "--repeat-penalty",
                              "1.3",
                              "--top-k",
                              "50",
                              "--presence-penalty",
                              "0.5",
                              "--logit-bias",
                              "40+1.5",
                              "--bad-word",
                              "self",
                              "--top-logprobs",
                              "3",
                              "--ignore-eos"};
  const json one = Generate(settings, 1);
  ASSERT_EQ(one["ids"].size(), 24u);
  ASSERT_EQ(one["top_logprobs"].size(), 24u);
  for (const json& top : one["top_logprobs"]) {
    ASSERT_EQ(top.size(), 3u);
    EXPECT_GE(top[0]["logprob"], top[1]["logprob"]);
  }
  for (const int local : {2, 3}) {
    EXPECT_EQ(Generate(settings, local)["ids"], one["ids"]) << local;
  }
}

TEST_F(SamplingTest, FlagsChangeWhatIsWritten) {
  const json plain = Generate({"--temp", "0", "--ignore-eos"});
  const uint32_t first = plain["ids"][0];
  const json biased =
      Generate({"--temp", "0", "--ignore-eos", "--logit-bias", "5+100"});
  EXPECT_EQ(MostRepeated(biased["ids"]), 24);
  EXPECT_EQ(biased["ids"][0], 5);
  // The probability is the model's, which the bias does not change.
  EXPECT_LT(biased["logprobs"][0], -1.0);
  const json frequent =
      Generate({"--temp", "0", "--ignore-eos", "--logit-bias", "5+100",
                "--frequency-penalty", "2", "--repeat-penalty", "1000"});
  EXPECT_LT(MostRepeated(frequent["ids"]), 24);
  const json forbidden =
      Generate({"--temp", "0", "--ignore-eos", "--logit-bias",
                std::to_string(first) + "-100"});
  EXPECT_NE(forbidden["ids"][0], first);
  // An end that must wait for the least number of tokens.
  const json ended = Generate(
      {"--temp", "0", "--ignore-eos", "--stop-id", std::to_string(first)});
  EXPECT_EQ(ended["ids"], json({first}));
  EXPECT_EQ(ended["finish_reason"], "stop");
  const json later = Generate({"--temp", "0", "--ignore-eos", "--stop-id",
                               std::to_string(first), "--min-tokens", "4"});
  EXPECT_GE(later["ids"].size(), 4u);
  EXPECT_NE(later["ids"][0], first);
}

TEST_F(SamplingTest, ImpossibleSettingsAreNamed) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(1));
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"--repeat-penalty", "0"}, "repetition_penalty 0, want more than 0"},
      {{"--presence-penalty", "3"}, "presence_penalty 3, want -2 to 2"},
      {{"--logit-bias", "99999+1"}, "logit_bias of id 99999, want less than"},
      {{"--logit-bias", "5+101"}, "logit_bias 101 of id 5, want -100 to 100"},
      {{"--stop-id", "99999"}, "stop_token_ids: id 99999, want less than"},
  };
  for (const auto& [flags, want] : cases) {
    Arguments arguments = {"submit", "--cluster", cluster(), "-p",
                           "x",      "-n",        "1"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Finished run = Cli(arguments);
    EXPECT_EQ(run.code, 2) << run.errors;
    EXPECT_THAT(run.error_line(), HasSubstr(want));
  }
  const Finished bias = Cli(
      {"submit", "--cluster", cluster(), "-p", "x", "--logit-bias", "five"});
  EXPECT_EQ(bias.code, 2);
  EXPECT_THAT(bias.error_line(), HasSubstr("five, want an id with a bias"));
}

// The prompt's probabilities beside a text are those of `score`.
TEST_F(SamplingTest, APromptsProbabilitiesComeBeforeItsText) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(2, {"--dtype", "f32"}));
  const Finished score =
      Cli({"score", "--cluster", cluster(), "-p", "def f(a, b):", "--json"});
  ASSERT_EQ(score.code, 0) << score.errors;
  const json call = {{"prompt", {{"text", "def f(a, b):"}}},
                     {"max_tokens", 2},
                     {"temperature", 0},
                     {"ignore_eos", true},
                     {"prompt_logprobs", 2}};
  const Finished events =
      Cli({"call", "127.0.0.1:" + std::to_string(port()),
           "ringfleet.v1.Coordinator/Generate", call.dump(), "--json"});
  ASSERT_EQ(events.code, 0) << events.errors;
  json prompt;
  std::vector<std::string> kinds;
  const json document = events.document();
  for (const json& event : document["replies"]) {
    kinds.push_back(event.items().begin().key());
    if (event.contains("prompt")) prompt = event["prompt"];
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"accepted", "prompt", "token",
                                             "token", "finished"}));
  const json want = score.document()["logprobs"];
  ASSERT_EQ(prompt["logprobs"].size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(prompt["logprobs"][i].get<float>(), want[i].get<float>());
    EXPECT_EQ(prompt["top"][i]["ids"].size(), 2u);
  }
}

}  // namespace
}  // namespace ringfleet::integration
