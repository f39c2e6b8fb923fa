// SPDX-License-Identifier: Apache-2.0
// The reasoning of chats over HTTP, with jobs that the test plays and a
// template that opens a reasoning where it is asked to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/http/api_fixture.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::coordinator {
namespace {

using nlohmann::json;
using testing::EventsOf;
using ::testing::HasSubstr;
using testing::HttpReply;

constexpr char kThinkingTemplate[] =
    "{% for m in messages %}<｜{{ 'User' if m.role == 'user' else 'Assistant' "
    "}}｜>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>"
    "{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}"
    "<｜Assistant｜>{% if thinking %}<think>\n{% elif thinking is defined %}"
    "<think></think>{% endif %}{% endif %}";

class ReasoningApiTest : public ApiTest {
 protected:
  static void SetUpTestSuite() {
    folder_ = new testing::TempDir();
    for (const char* name : {"config.json", "tokenizer.json"}) {
      testing::WriteFile(folder_->File(name), testing::ReadFile(absl::StrCat(
                                                  kTinyModel, "/", name)));
    }
    json config = json::parse(
        testing::ReadFile(absl::StrCat(kTinyModel, "/tokenizer_config.json")));
    config["chat_template"] = kThinkingTemplate;
    testing::WriteFile(folder_->File("tokenizer_config.json"), config.dump());
    auto model = ServedModel::Load(folder_->path());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = model->release();
  }
  static void TearDownTestSuite() {
    ApiTest::TearDownTestSuite();
    delete folder_;
  }

  // Returns a chat's message, whose parts are those of its stream, too.
  json MessageOf(const std::string& fields, json* body = nullptr) {
    const std::string head =
        R"({"messages": [{"role": "user", "content": "x"}])" + fields;
    const HttpReply whole = Post(kChat, head + "}");
    EXPECT_EQ(whole.status, 200) << whole.body;
    const json parsed = json::parse(whole.body);
    if (body != nullptr) *body = parsed;
    json message = parsed["choices"][0]["message"];

    const HttpReply stream =
        Post(kChat, head + R"(, "stream": true, "stream_options":
                          {"include_usage": true}})");
    std::string reasoning, content;
    for (const std::string& event : EventsOf(stream.body)) {
      if (event == "[DONE]") break;
      const json chunk = json::parse(event);
      if (!chunk["usage"].is_null()) {
        EXPECT_EQ(chunk["usage"], parsed["usage"]);
      }
      for (const json& choice : chunk["choices"]) {
        const json& delta = choice["delta"];
        if (delta.contains("reasoning_content")) {
          EXPECT_EQ(content, "");
          EXPECT_NE(delta["reasoning_content"], "");
          reasoning += delta["reasoning_content"].get<std::string>();
        } else if (delta.contains("content") && !delta.contains("role")) {
          EXPECT_NE(delta["content"], "");
          content += delta["content"].get<std::string>();
        }
      }
    }
    EXPECT_EQ(message.value("reasoning_content", ""), reasoning);
    EXPECT_EQ(message["content"].is_null() ? "" : message["content"], content);
    return message;
  }

  static inline testing::TempDir* folder_ = nullptr;
};

TEST_F(ReasoningApiTest, ThePromptOpensIt) {
  Start();
  Answer("Let me see.\n</think>\n\nYes.");
  json body;
  const json message = MessageOf(R"(, "thinking": true)", &body);
  EXPECT_EQ(message["reasoning_content"], "Let me see.");
  EXPECT_EQ(message["content"], "Yes.");
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"],
            Ids("Let me see.\n</think>").size());
  EXPECT_EQ(body["usage"]["completion_tokens"],
            Ids("Let me see.\n</think>\n\nYes.").size());
  // The prompt ends with the marker's own token.
  const std::vector<uint32_t> ids = jobs_.Await(0)->request().prompt_ids;
  const std::vector<uint32_t> end = Ids("<think>\n");
  EXPECT_TRUE(std::equal(end.rbegin(), end.rend(), ids.rbegin()));

  // Nothing is open: an end marker within the text is text.
  EXPECT_EQ(MessageOf(R"(, "thinking": false)")["content"],
            "Let me see.\n</think>\n\nYes.");
}

TEST_F(ReasoningApiTest, TheOutputBeginsIt) {
  Start();
  Answer("<think>\nHm.\n</think>\n\nYes.");
  for (const char* fields : {"", R"(, "thinking": true)",
                             R"(, "chat_template_kwargs": {"thinking": true})",
                             R"(, "enable_thinking": true)"}) {
    SCOPED_TRACE(fields);
    const json message = MessageOf(fields);
    EXPECT_EQ(message["reasoning_content"], "Hm.");
    EXPECT_EQ(message["content"], "Yes.");
  }
  Answer("Yes.");
  EXPECT_FALSE(MessageOf("").contains("reasoning_content"));
}

TEST_F(ReasoningApiTest, WithoutAnEndThereIsNoContent) {
  Start();
  Answer("Let me see");
  json body;
  const json message = MessageOf(R"(, "thinking": true)", &body);
  EXPECT_EQ(message["reasoning_content"], "Let me see");
  EXPECT_TRUE(message["content"].is_null());
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"],
            body["usage"]["completion_tokens"]);
}

TEST_F(ReasoningApiTest, ClientsMayWantNone) {
  Start();
  Answer("<think>Hm.</think>Yes.");
  json message = MessageOf(R"(, "separate_reasoning": false)");
  EXPECT_EQ(message["content"], "<think>Hm.</think>Yes.");
  EXPECT_FALSE(message.contains("reasoning_content"));
  message = MessageOf(R"(, "include_reasoning": false)");
  EXPECT_EQ(message["content"], "Yes.");
  EXPECT_FALSE(message.contains("reasoning_content"));
  // A completion is one text.
  const HttpReply plain =
      Post(kCompletions, R"({"prompt": "<think>", "max_tokens": 20})");
  EXPECT_EQ(json::parse(plain.body)["choices"][0]["text"],
            "<think>Hm.</think>Yes.");
}

TEST_F(ReasoningApiTest, StopStringsCountInIt) {
  Start();
  Answer("<think>One.\n\nTwo.</think>Yes.\n\nNo.");
  json message = MessageOf(R"(, "stop": ["\n\n"])");
  EXPECT_EQ(message["reasoning_content"], "One.");
  EXPECT_TRUE(message["content"].is_null());
  // The held back beginning of a stop string hides no marker.
  message = MessageOf(R"(, "stop": ["</thinker>", "No"])");
  EXPECT_EQ(message["reasoning_content"], "One.\n\nTwo.");
  EXPECT_EQ(message["content"], "Yes.\n\n");
}

TEST_F(ReasoningApiTest, LogprobsAreOfAllTokens) {
  Start();
  const std::string output = "<think>Hm.</think>\n\nYes.";
  Answer(output);
  json body;
  MessageOf(R"(, "logprobs": true)", &body);
  EXPECT_EQ(body["choices"][0]["logprobs"]["content"].size(),
            Ids(output).size());
  const HttpReply stream =
      Post(kChat, R"({"messages": [{"role": "user", "content": "x"}],
                 "logprobs": true, "stream": true})");
  size_t tokens = 0;
  for (const std::string& event : EventsOf(stream.body)) {
    if (event == "[DONE]") break;
    const json logprobs = json::parse(event)["choices"][0]["logprobs"];
    if (!logprobs.is_null()) tokens += logprobs["content"].size();
  }
  EXPECT_EQ(tokens, Ids(output).size());
}

TEST_F(ReasoningApiTest, HistoryGivesItToTheTemplate) {
  Start();
  Answer("x");
  for (const char* name : {"reasoning_content", "reasoning"}) {
    const HttpReply reply = Post(
        "/apply-template",
        absl::StrCat(R"({"messages": [{"role": "user", "content": "a"},
                     {"role": "assistant", "content": "b", ")",
                     name, R"(": "r"}, {"role": "user", "content": "c"}]})"));
    EXPECT_EQ(json::parse(reply.body)["prompt"],
              "<｜User｜>a<｜Assistant｜><think>r</"
              "think>b<｜User｜>c<｜Assistant｜>");
    const HttpReply wrong = Post(
        kChat, absl::StrCat(R"({"messages": [{"role": "assistant", "content":
                            "b", ")",
                            name, R"(": 5}]})"));
    EXPECT_EQ(wrong.status, 400);
    EXPECT_THAT(wrong.body, HasSubstr(absl::StrCat("messages[0].", name)));
  }
}

TEST_F(ReasoningApiTest, APartialReasoningIsContinued) {
  Start();
  Answer(" see.</think>Yes.");
  const HttpReply reply =
      Post(kChat, R"({"messages": [{"role": "user", "content": "</think>"},
                 {"role": "assistant", "content": "<think>\nLet me"}],
                 "continue_final_message": true})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json message = json::parse(reply.body)["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], " see.");
  EXPECT_EQ(message["content"], "Yes.");
}

}  // namespace
}  // namespace ringfleet::coordinator
