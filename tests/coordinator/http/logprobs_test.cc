// SPDX-License-Identifier: Apache-2.0
// The probabilities of prompts and answers over HTTP.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/coordinator/http/api_fixture.h"

namespace ringfleet::coordinator {
namespace {

using nlohmann::json;
using testing::EventsOf;

TEST_F(ApiTest, LogProbabilitiesGoWithTheirText) {
  Start();
  const std::string text = "a \xC3\xB6 b";
  std::vector<uint32_t> ids = Ids(text);
  ids.push_back(1);  // The stop token has no text.
  jobs_.AnswerWith(ids, v1::FINISH_REASON_STOP);
  json chat = json::parse(
      Post(kChat, R"({"messages": [{"role": "user", "content": "x"}],
                      "logprobs": true, "top_logprobs": 0})")
          .body)["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(chat.size(), ids.size() - 1);
  std::string bytes;
  for (const json& token : chat) {
    EXPECT_EQ(token["logprob"], -0.5);
    EXPECT_EQ(token["top_logprobs"], json::array());
    for (const json& byte : token["bytes"]) {
      bytes += static_cast<char>(byte.get<int>());
    }
  }
  EXPECT_EQ(bytes, text);
  const std::string streamed =
      Post(kCompletions, R"({"prompt": "x", "logprobs": 0, "stream": true})")
          .body;
  const json whole =
      json::parse(Post(kCompletions, R"({"prompt": "x", "logprobs": 0})")
                      .body)["choices"][0]["logprobs"];
  // A completion has the probability of the stop token, too.
  ASSERT_EQ(whole["tokens"].size(), ids.size());
  EXPECT_EQ(whole["text_offset"][0], 0);
  EXPECT_EQ(whole["top_logprobs"][0].size(), 1u);
  json tokens = json::array(), offsets = json::array();
  for (const std::string& event : EventsOf(streamed)) {
    if (event == "[DONE]") break;
    const json part = json::parse(event)["choices"][0]["logprobs"];
    if (part.is_null()) continue;
    tokens.insert(tokens.end(), part["tokens"].begin(), part["tokens"].end());
    offsets.insert(offsets.end(), part["text_offset"].begin(),
                   part["text_offset"].end());
  }
  EXPECT_EQ(tokens, whole["tokens"]);
  EXPECT_EQ(offsets, whole["text_offset"]);
  // In characters, before " b" and behind it.
  EXPECT_EQ(offsets[offsets.size() - 2], 3);
  EXPECT_EQ(offsets.back(), 5);
}

TEST_F(ApiTest, LikelyTokensAreToldBesideTheDrawnOnes) {
  Start();
  jobs_.AnswerWith({Ids("x")[0]}, v1::FINISH_REASON_LENGTH);
  const json chat = json::parse(
      Post(kChat, R"({"messages": [{"role": "user", "content": "x"}],
                      "logprobs": true, "top_logprobs": 2})")
          .body)["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(chat.size(), 1u);
  ASSERT_EQ(chat[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(chat[0]["top_logprobs"][1]["logprob"], -0.25);
  EXPECT_EQ(chat[0]["token"], "x");
  const json whole =
      json::parse(Post(kCompletions, R"({"prompt": "x", "logprobs": 2})")
                      .body)["choices"][0]["logprobs"];
  EXPECT_EQ(whole["top_logprobs"][0].size(), 3u);
  EXPECT_EQ(whole["top_logprobs"][0]["x"], whole["token_logprobs"][0]);
  EXPECT_EQ(Post(kChat, R"({"messages": [{"role": "user", "content": "x"}],
                            "top_logprobs": 2})")
                .status,
            400);
}

TEST_F(ApiTest, AnEchoHasThePromptAndItsProbabilities) {
  Start();
  const std::vector<uint32_t> ids = {Ids("a")[0], Ids("b")[0]};
  jobs_.AnswerWith({Ids("x")[0]}, v1::FINISH_REASON_LENGTH);
  const std::string body = R"({"prompt": [[)" + std::to_string(ids[0]) + "," +
                           std::to_string(ids[1]) +
                           R"(]], "echo": true, "logprobs": 1,
                              "max_tokens": 1)";
  const json choice =
      json::parse(Post(kCompletions, body + "}").body)["choices"][0];
  EXPECT_EQ(choice["text"], "abx");
  const json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json::array({"a", "b", "x"}));
  EXPECT_EQ(logprobs["token_logprobs"], json::array({nullptr, -1.5, -0.5}));
  EXPECT_EQ(logprobs["text_offset"], json::array({0, 1, 2}));
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  EXPECT_EQ(logprobs["top_logprobs"][1].size(), 2u);
  EXPECT_EQ(logprobs["top_logprobs"][1]["b"], -1.5);
  // A stream has the same in its parts.
  std::string text;
  json values = json::array();
  for (const std::string& event :
       EventsOf(Post(kCompletions, body + R"(, "stream": true})").body)) {
    if (event == "[DONE]") break;
    const json part = json::parse(event)["choices"][0];
    text += part["text"].get<std::string>();
    if (part["logprobs"].is_null()) continue;
    for (const json& value : part["logprobs"]["token_logprobs"]) {
      values.push_back(value);
    }
  }
  EXPECT_EQ(text, "abx");
  EXPECT_EQ(values, logprobs["token_logprobs"]);
  // The prompt alone.
  jobs_.AnswerWith({}, v1::FINISH_REASON_LENGTH);
  const json alone =
      json::parse(Post(kCompletions, R"({"prompt": "ab", "echo": true,
                                         "max_tokens": 0})")
                      .body)["choices"][0];
  EXPECT_EQ(alone["text"], "ab");
  EXPECT_TRUE(alone["logprobs"].is_null());
  EXPECT_EQ(Post(kChat, R"({"messages": [{"role": "user", "content": "x"}],
                            "echo": true})")
                .status,
            400);
}

TEST_F(ApiTest, PromptProbabilitiesHaveVllmsForm) {
  Start();
  const std::vector<uint32_t> ids = {Ids("a")[0], Ids("b")[0]};
  jobs_.AnswerWith({Ids("x")[0]}, v1::FINISH_REASON_LENGTH);
  const std::string prompt = R"({"prompt": [)" + std::to_string(ids[0]) + "," +
                             std::to_string(ids[1]) + "]";
  const json told =
      json::parse(Post(kCompletions, prompt + R"(, "prompt_logprobs": 1})")
                      .body)["choices"][0]["prompt_logprobs"];
  ASSERT_EQ(told.size(), 2u);
  EXPECT_TRUE(told[0].is_null());
  const json& own = told[1][std::to_string(ids[1])];
  EXPECT_EQ(own["logprob"], -1.5);
  EXPECT_TRUE(own["rank"].is_null());
  EXPECT_EQ(own["decoded_token"], "b");
  EXPECT_EQ(told[1]["300"]["rank"], 1);
  EXPECT_EQ(
      Post(kCompletions, prompt + R"(, "prompt_logprobs": 1, "stream": true})")
          .status,
      400);
  const json chat = json::parse(
      Post(kChat, R"({"messages": [{"role": "user", "content": "x"}],
                      "prompt_logprobs": 0})")
          .body);
  EXPECT_TRUE(chat["prompt_logprobs"].is_array());
}

}  // namespace
}  // namespace ringfleet::coordinator
