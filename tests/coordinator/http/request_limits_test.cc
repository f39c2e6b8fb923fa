// SPDX-License-Identifier: Apache-2.0
// Limits of the work, memory and time of one request. The tests look at the
// refusals and at the limit that stopped the work, not at clocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/http/json_text.h"
#include "tests/coordinator/http/api_fixture.h"

namespace ringfleet::coordinator {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::HttpClient;
using testing::HttpReply;

std::string Repeated(absl::string_view item, size_t count) {
  return absl::StrJoin(std::vector<absl::string_view>(count, item), ",");
}

json ErrorIn(const HttpReply& reply) {
  EXPECT_EQ(reply.status, 400) << reply.body.substr(0, 300);
  return json::parse(reply.body)["error"];
}

TEST_F(ApiTest, EndlessListsAreRefusedWhileTheyAreParsed) {
  Start();
  const struct {
    const char* name;
    const char* item;
    size_t values;  // Of an item.
  } cases[] = {{"stop", "\"a\"", 1},
               {"prompt", "[5]", 2},
               {"messages", R"({"role":"user","content":"a"})", 3}};
  for (const auto& [name, item, values] : cases) {
    SCOPED_TRACE(name);
    const bool chat = std::string(name) == "messages";
    // Whatever follows the last value that may be is not looked at.
    const std::string body = absl::StrCat(
        "{\"", name, "\": [", Repeated(item, kMaxJsonValues / values + 1), "!");
    EXPECT_EQ(
        ErrorIn(Post(chat ? kChat : kCompletions, body))["message"],
        absl::StrCat("body: ", name, ": more than 500000 values, want fewer"));
  }
  std::string keys;
  for (int i = 0; i < 2000; ++i) {
    absl::StrAppend(&keys, i == 0 ? "" : ",", "\"", i, "\":0");
  }
  EXPECT_EQ(ErrorIn(Post(kCompletions, absl::StrCat(R"({"logit_bias": {)", keys,
                                                    "!")))["message"],
            "body: logit_bias: an object of more than 1024 keys, want fewer");
  EXPECT_EQ(jobs_.started(), 0u);
}

TEST_F(ApiTest, LongListsAreRefusedBeforeTheirEntriesAreRead) {
  Start();
  const std::pair<const char*, const char*> cases[] = {
      {"stop", "5"},                // 16
      {"stop_token_ids", "\"x\""},  // 1024
      {"bad_words", "5"},           // 1024
      {"prompt", "[\"x\"]"},        // 256
      {"prompt", "5"},              // The context.
      {"messages", "5"}};           // 10,000
  for (const auto& [name, item] : cases) {
    SCOPED_TRACE(absl::StrCat(name, " of ", item));
    const bool chat = std::string(name) == "messages";
    const bool prompt = std::string(name) == "prompt";
    const json error = ErrorIn(
        Post(chat ? kChat : kCompletions,
             absl::StrCat("{", chat || prompt ? "" : R"("prompt": "a", )", "\"",
                          name, "\": [", Repeated(item, 10'001), "]}")));
    EXPECT_EQ(error["param"], name);
    // An entry of a wrong type was not seen.
    EXPECT_TRUE(absl::StrContains(error["message"].get<std::string>(),
                                  "want at most") ||
                absl::StrContains(error["message"].get<std::string>(),
                                  "want a list of"))
        << error;
  }
  const json words = ErrorIn(
      Post(kCompletions, absl::StrCat(R"({"prompt": "a", "bad_words": [")",
                                      std::string(257, 'a'), "\"]}")));
  EXPECT_EQ(words["param"], "bad_words");
}

TEST_F(ApiTest, TenThousandMessagesAreFine) {
  Start();
  const std::string item = R"({"role":"user","content":"a"})";
  const HttpReply reply =
      Post("/apply-template",
           absl::StrCat("{\"messages\": [", Repeated(item, 10'000), "]}"));
  ASSERT_EQ(reply.status, 200) << reply.body.substr(0, 300);
  EXPECT_GT(reply.body.size(), 10'000u * std::string("<｜User｜>a").size());
}

// An object finds its keys one by one, so many keys are quadratic work.
TEST(JsonTextTest, KeysAreBoundedByTheWorkOfFindingThem) {
  std::string keys;
  for (size_t i = 0; i < kMaxJsonKeys; ++i) {
    absl::StrAppend(&keys, i == 0 ? "" : ",", "\"", i, "\":0");
  }
  const auto parse = [&](size_t objects) {
    return ParseJsonBody(
        absl::StrCat("{\"metadata\": [",
                     Repeated(absl::StrCat("{", keys, "}"), objects), "]}"));
  };
  EXPECT_TRUE(parse(5).ok());
  EXPECT_EQ(parse(40).status().message(),
            "body: metadata: too many objects of many keys");
  // Messages have a few keys each.
  EXPECT_TRUE(
      ParseJsonBody(
          absl::StrCat("{\"messages\": [",
                       Repeated(R"({"a":0,"b":0,"c":0,"d":0,"e":0})", 2'000),
                       "]}"))
          .ok());
  EXPECT_FALSE(ParseJsonBody(absl::StrCat("{", keys, ",\"x\":0}")).ok());
}

// The number of tokens in the error is that of the longest ones: the text was
// measured only.
TEST_F(ApiTest, LongTextsAreRefusedByTheirBytes) {
  Start();
  const size_t longest = *(*model_->tokenizer())->most_bytes_of_token();
  const size_t bytes = size_t{64} << 10;
  const std::string text(bytes, 'a');
  json error =
      ErrorIn(Post(kCompletions, absl::StrCat("{\"prompt\": \"", text, "\"}")));
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["n_prompt_tokens"], bytes / longest);
  error = ErrorIn(Post(kChat, absl::StrCat(R"({"stream": true, "messages":
            [{"role": "user", "content": ")",
                                           text, "\"}]}")));
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_GE(error["n_prompt_tokens"], bytes / longest);
  EXPECT_LT(error["n_prompt_tokens"], bytes / longest + 10);
  error = ErrorIn(
      Post("/tokenize", absl::StrCat("{\"content\": \"",
                                     std::string((4 << 20) + 1, 'a'), "\"}")));
  EXPECT_EQ(error["param"], "content");
  EXPECT_EQ(error["message"], "content: 4194305 bytes, want at most 4194304");
}

TEST_F(ApiTest, TokensOfAllChoicesAreBounded) {
  jobs_.SetContext(1 << 20);
  HttpOptions options;
  options.default_max_tokens = 1 << 20;
  Start(options);
  const auto post = [this](const char* fields) {
    return Post(kCompletions,
                absl::StrCat(R"({"prompt": [5, 6], )", fields, "}"));
  };
  for (const char* const fields :
       {R"("n": 5, "max_tokens": 1000000)", R"("n": 128, "max_tokens": 40000)",
        R"("max_tokens": 250000, "logprobs": 20)",
        R"("max_tokens": 250000, "prompt_logprobs": 20)"}) {
    const json error = ErrorIn(post(fields));
    EXPECT_EQ(error["param"], "n") << fields;
    EXPECT_THAT(error["message"].get<std::string>(),
                HasSubstr("want at most 4194304"));
  }
  EXPECT_EQ(ErrorIn(Post(kCompletions, R"({"prompt": [[1], [2], [3]],
                                           "n": 100})"))["param"],
            "n");
  EXPECT_EQ(jobs_.started(), 0u);
  Answer("x");
  EXPECT_EQ(post(R"("n": 4, "max_tokens": 1000000)").status, 200);
  EXPECT_EQ(post(R"("max_tokens": 160000, "logprobs": 20)").status, 200);
}

TEST_F(ApiTest, AJobHasTheShorterOneOfTwoTimeouts) {
  Answer("x");
  const auto remaining = [this](const char* fields) {
    const size_t index = jobs_.started();
    const HttpReply reply =
        Post(kCompletions, absl::StrCat(R"({"prompt": "a")", fields, "}"));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return jobs_.Await(index)->request().deadline.Remaining();
  };
  Start();
  EXPECT_EQ(remaining(""), absl::InfiniteDuration());
  EXPECT_EQ(remaining(R"(, "timeout": null)"), absl::InfiniteDuration());
  EXPECT_LE(remaining(R"(, "timeout": 1800.5)"), absl::Seconds(1800.5));
  EXPECT_GT(remaining(R"(, "timeout": 1800.5)"), absl::Seconds(900));
  HttpOptions options;
  options.request_timeout = absl::Hours(10);
  Start(options);
  EXPECT_LE(remaining(""), absl::Hours(10));
  EXPECT_GT(remaining(""), absl::Hours(9));
  EXPECT_LE(remaining(R"(, "timeout": 3600)"), absl::Hours(1));
  EXPECT_LE(remaining(R"(, "timeout": 86400)"), absl::Hours(10));
  for (const char* const value : {"0", "-1", "\"30\"", "true", "86401"}) {
    const json error = ErrorIn(
        Post(kCompletions,
             absl::StrCat(R"({"prompt": "a", "timeout": )", value, "}")));
    EXPECT_EQ(error["param"], "timeout") << value;
  }
}

TEST_F(ApiTest, ATimeoutIs408AndNotToBeTriedAgain) {
  Start();
  HttpClient client(face_->port());
  client.SendRequest("POST", kCompletions,
                     R"({"prompt": "a", "stream": true, "timeout": 600})");
  const auto job = jobs_.Await(0);
  ASSERT_NE(job, nullptr);
  job->OnFailed(absl::DeadlineExceededError("the job's timeout has passed"));
  const HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 408);
  // OpenAI's client sends a request again after a 408 that does not say so.
  EXPECT_EQ(reply.headers.at("x-should-retry"), "false");
  const json error = json::parse(reply.body)["error"];
  EXPECT_EQ(error["type"], "timeout_error");
  EXPECT_EQ(error["message"], "the job's timeout has passed");
  EXPECT_TRUE(jobs_.AwaitLeft(*job));
}

// Python's str.splitlines ends lines at each of these.
TEST(JsonTextTest, AStringHasNoLineEndOfAnyReader) {
  std::string json;
  AppendJsonString("a\n\v\f\r\x1c\x1d\x1e\u0085\u2028\u2029\u00e9", &json);
  EXPECT_EQ(json,
            "\"a\\n\\u000b\\u000c\\r\\u001c\\u001d\\u001e\\u0085\\u2028"
            "\\u2029\u00e9\"");
}

// Terminals obey the controls of C1 as those of ASCII.
TEST(JsonTextTest, AStringHasNoControlCharacter) {
  std::string json;
  AppendJsonString("\x1b\x7f\u0080\u009b\u009f\u00a0", &json);
  EXPECT_EQ(json, "\"\\u001b\\u007f\\u0080\\u009b\\u009f\u00a0\"");
}

TEST(HttpRequestTest, OnlyHexDigitsAreUnescaped) {
  HttpRequest request;
  request.query = "a=%41%2f&b=%+1%%%20%4&b=2&c=1+2";
  EXPECT_EQ(request.Parameter("a"), "A/");
  EXPECT_EQ(request.Parameter("b"), "% 1%% %4");
  EXPECT_EQ(request.Parameter("c"), "1 2");
  EXPECT_EQ(request.Parameter("d"), std::nullopt);
}

}  // namespace
}  // namespace ringfleet::coordinator
