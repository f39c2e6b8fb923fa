// SPDX-License-Identifier: Apache-2.0
// The forms of answers and errors that clients of OpenAI's API rely on. Lists
// of keys are those that OpenAI's API document requires.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/tokenizer/utf8.h"
#include "tests/coordinator/http/api_fixture.h"

namespace ringfleet::coordinator {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using testing::EventsOf;
using ::testing::HasSubstr;
using testing::HttpClient;
using testing::HttpReply;
using ::testing::StartsWith;

constexpr char kJson[] = "application/json; charset=utf-8";
constexpr size_t kLongestLine = size_t{64} << 10;
constexpr char kUserX[] = R"("messages": [{"role": "user", "content": "x"}])";

void ExpectKeys(const json& object, const std::vector<const char*>& keys) {
  for (const char* const key : keys) {
    EXPECT_TRUE(object.contains(key)) << key << " in " << object;
  }
}

void ExpectUsage(const json& usage) {
  ExpectKeys(usage, {"prompt_tokens", "completion_tokens", "total_tokens"});
  EXPECT_EQ(usage["total_tokens"], usage["prompt_tokens"].get<int>() +
                                       usage["completion_tokens"].get<int>());
}

// Expects what a body and a chunk have in common.
void ExpectAnswerHead(const json& body, bool chat) {
  ExpectKeys(body, {"id", "object", "created", "model", "choices"});
  EXPECT_THAT(body["id"].get<std::string>(),
              StartsWith(chat ? "chatcmpl-" : "cmpl-"));
  EXPECT_TRUE(body["created"].is_number_integer());
  EXPECT_TRUE(body["system_fingerprint"].is_string());
}

// Parses the events of a stream; the last one must be [DONE].
std::vector<json> ChunksOf(const HttpReply& reply) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_TRUE(reply.whole);
  std::vector<std::string> events = EventsOf(reply.body);
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  std::vector<json> chunks;
  for (const std::string& event : events) chunks.push_back(json::parse(event));
  return chunks;
}

size_t LongestLine(const std::string& body) {
  size_t longest = 0;
  for (const absl::string_view line : absl::StrSplit(body, '\n')) {
    longest = std::max(longest, line.size());
  }
  return longest;
}

TEST_F(ApiTest, WholeAnswersHaveTheRequiredKeys) {
  Start();
  Answer("ab");
  const HttpReply chat = Post(kChat, absl::StrCat("{", kUserX, R"(, "n": 2})"));
  EXPECT_EQ(chat.headers.at("content-type"), kJson);
  json body = json::parse(chat.body);
  ExpectAnswerHead(body, /*chat=*/true);
  EXPECT_EQ(body["object"], "chat.completion");
  ExpectUsage(body["usage"]);
  for (size_t i = 0; i < 2; ++i) {
    const json& choice = body["choices"][i];
    ExpectKeys(choice, {"index", "message", "finish_reason", "logprobs"});
    ExpectKeys(choice["message"], {"role", "content", "refusal"});
    EXPECT_EQ(choice["index"], i);
  }
  body = json::parse(Post(kCompletions, R"({"prompt": "x"})").body);
  ExpectAnswerHead(body, /*chat=*/false);
  EXPECT_EQ(body["object"], "text_completion");
  ExpectUsage(body["usage"]);
  ExpectKeys(body["choices"][0],
             {"text", "index", "finish_reason", "logprobs"});
  body = json::parse(Get("/v1/models").body);
  EXPECT_EQ(body["object"], "list");
  ExpectKeys(body["data"][0], {"id", "object", "created", "owned_by"});
  EXPECT_EQ(body["data"][0]["object"], "model");
  EXPECT_TRUE(body["data"][0]["created"].is_number_integer());
}

TEST_F(ApiTest, ChunksHaveTheRequiredKeysAndOneEndPerChoice) {
  Start();
  Answer("abc", v1::FINISH_REASON_STOP);
  for (const bool chat : {false, true}) {
    SCOPED_TRACE(chat);
    const std::string request = absl::StrCat(
        "{", chat ? kUserX : R"("prompt": "x")", R"(, "n": 3, "stream": true)");
    const auto chunks =
        ChunksOf(Post(chat ? kChat : kCompletions, request + "}"));
    std::vector<int> ends(3);
    for (const json& chunk : chunks) {
      ExpectAnswerHead(chunk, chat);
      EXPECT_EQ(chunk["object"],
                chat ? "chat.completion.chunk" : "text_completion");
      EXPECT_EQ(chunk["id"], chunks[0]["id"]);
      EXPECT_FALSE(chunk.contains("usage"));
      ASSERT_EQ(chunk["choices"].size(), 1u);
      const json& choice = chunk["choices"][0];
      ExpectKeys(choice, {"index", "finish_reason", "logprobs",
                          chat ? "delta" : "text"});
      if (choice["finish_reason"].is_null()) continue;
      EXPECT_EQ(choice["finish_reason"], "stop");
      ++ends[choice["index"].get<size_t>()];
    }
    EXPECT_THAT(ends, ElementsAre(1, 1, 1));
    // Usage at the end, and in each chunk where both are asked for.
    const auto usage = [&](const char* options) {
      return ChunksOf(
          Post(chat ? kChat : kCompletions,
               absl::StrCat(request, R"(, "stream_options": )", options, "}")));
    };
    for (const json& chunk : usage(R"({"continuous_usage_stats": true})")) {
      EXPECT_FALSE(chunk.contains("usage"));
    }
    const auto each =
        usage(R"({"include_usage": true, "continuous_usage_stats": true,
                  "include_obfuscation": false})");
    for (const json& chunk : each) ExpectUsage(chunk["usage"]);
    EXPECT_EQ(each.back()["choices"], json::array());
    EXPECT_EQ(each.back()["usage"]["completion_tokens"], 3 * Ids("abc").size());
    const auto once = usage(R"({"include_usage": true})");
    for (size_t i = 0; i + 1 < once.size(); ++i) {
      EXPECT_TRUE(once[i].at("usage").is_null());
    }
    EXPECT_EQ(once.back()["choices"], json::array());
    ExpectUsage(once.back()["usage"]);
  }
}

TEST_F(ApiTest, AnAnswerWithoutTextIsWhole) {
  Start();
  jobs_.AnswerWith({1}, v1::FINISH_REASON_STOP);  // The stop token.
  const json whole =
      json::parse(Post(kChat, absl::StrCat("{", kUserX, "}")).body);
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "");
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(whole["usage"]["completion_tokens"], 1);
  const auto chunks =
      ChunksOf(Post(kChat, absl::StrCat("{", kUserX, R"(, "stream": true})")));
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(chunks[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_TRUE(chunks[0]["choices"][0]["finish_reason"].is_null());
  EXPECT_EQ(chunks[1]["choices"][0]["delta"], json::object());
  EXPECT_EQ(chunks[1]["choices"][0]["finish_reason"], "stop");
}

TEST_F(ApiTest, CharactersStayWholeInStreams) {
  Start();
  const std::string text = "a\xF0\x9F\x98\x80\xE2\x82\xAC";
  std::vector<uint32_t> ids = Ids(text);
  ASSERT_GE(ids.size(), 6u);  // Characters of several tokens.
  for (const bool broken : {false, true}) {
    HttpClient client(face_->port());
    client.SendRequest("POST", kChat,
                       absl::StrCat("{", kUserX, R"(, "stream": true,
                                    "logprobs": true})"));
    const auto job = jobs_.Await(broken ? 1 : 0);
    ASSERT_NE(job, nullptr);
    for (const uint32_t id : ids) job->OnToken({.id = id});
    if (broken) job->OnToken({.id = ids[1]});  // Half a character.
    job->OnFinished(v1::FINISH_REASON_LENGTH, {});
    const HttpReply reply = client.Read();
    EXPECT_TRUE(CheckUtf8(reply.body).ok());
    const std::string told = TextOf(EventsOf(reply.body), /*chat=*/true);
    EXPECT_THAT(told, StartsWith(text));
    if (!broken) {
      EXPECT_EQ(told, text);
    }
  }
}

// Clients like aiohttp read lines of a bounded length only. A prompt that is
// told at once may be longer than the queue of a slow client.
TEST_F(ApiTest, LinesOfStreamsAreBounded) {
  jobs_.SetContext(100'000);
  Start();
  const uint32_t longest = Ids(std::string(32, '#'))[0];
  const std::vector<uint32_t> prompt(10'000, longest);
  const std::string request = absl::StrCat(
      R"({"echo": true, "stream": true, "max_tokens": 3, "prompt": )",
      json(prompt).dump());
  Answer("abc");
  const HttpReply echo = Post(kCompletions, request + "}");
  EXPECT_EQ(TextOf(EventsOf(echo.body), /*chat=*/false),
            std::string(320'000, '#') + "abc");
  EXPECT_EQ(EventsOf(echo.body).back(), "[DONE]");
  EXPECT_LT(LongestLine(echo.body), kLongestLine);
}

TEST_F(ApiTest, LinesWithProbabilitiesAreBoundedAndWhole) {
  jobs_.SetContext(100'000);
  Start();
  // Prompts, and answers that end all at once, with characters of several
  // tokens and tokens without text.
  std::vector<uint32_t> ids;
  for (int i = 0; i < 40; ++i) {
    for (const uint32_t id : Ids("a\xF0\x9F\x98\x80")) ids.push_back(id);
    if (i % 20 == 0) ids.insert(ids.end(), 9, 1);
  }
  jobs_.AnswerWith(ids, v1::FINISH_REASON_LENGTH);
  const std::string request = absl::StrCat(
      R"({"echo": true, "logprobs": 20, "max_tokens": 1000, "prompt": )",
      json(ids).dump());
  const json whole = json::parse(
      Post(kCompletions, request + "}").body)["choices"][0]["logprobs"];
  ASSERT_EQ(whole["tokens"].size(), 2 * ids.size());
  for (const char* const stop : {"", R"(, "stop": "aaaa")"}) {
    const HttpReply stream = Post(
        kCompletions, absl::StrCat(request, R"(, "stream": true)", stop, "}"));
    EXPECT_LT(LongestLine(stream.body), kLongestLine / 4);
    json tokens = json::array();
    for (const json& chunk : ChunksOf(stream)) {
      const json& part = chunk["choices"][0]["logprobs"];
      if (part.is_null()) continue;
      EXPECT_LE(part["tokens"].size(), 4u);
      tokens.insert(tokens.end(), part["tokens"].begin(), part["tokens"].end());
    }
    EXPECT_EQ(tokens, whole["tokens"]);
  }
}

// The tokens of a chat's probabilities are its text, streamed and whole.
TEST_F(ApiTest, TokensOfProbabilitiesJoinToTheText) {
  Start();
  const std::string text = "one two, three four";
  Answer(text);
  const std::string request =
      absl::StrCat("{", kUserX, R"(, "logprobs": true, "top_logprobs": 5)");
  const json whole = json::parse(Post(kChat, request + "}").body);
  std::string told;
  for (const json& token : whole["choices"][0]["logprobs"]["content"]) {
    ExpectKeys(token, {"token", "logprob", "bytes", "top_logprobs"});
    ASSERT_EQ(token["top_logprobs"].size(), 5u);
    ExpectKeys(token["top_logprobs"][0], {"token", "logprob", "bytes"});
    told += token["token"].get<std::string>();
  }
  EXPECT_EQ(told, text);
  told.clear();
  for (const json& chunk :
       ChunksOf(Post(kChat, request + R"(, "stream": true})"))) {
    const json& choice = chunk["choices"][0];
    if (choice["logprobs"].is_null()) continue;
    std::string part;
    for (const json& token : choice["logprobs"]["content"]) {
      part += token["token"].get<std::string>();
    }
    EXPECT_EQ(part, choice["delta"]["content"]);
    told += part;
  }
  EXPECT_EQ(told, text);
}

// The text that a stop string holds back comes at once in the end, with the
// probabilities of many tokens.
TEST_F(ApiTest, HeldBackTokensAreToldInSeveralChunks) {
  Start();
  const std::string text(200, 'z');
  std::vector<uint32_t> ids(200, Ids("z")[0]);
  jobs_.AnswerWith(ids, v1::FINISH_REASON_LENGTH);
  for (const size_t stop_bytes : {256, 190}) {
    const auto chunks = ChunksOf(
        Post(kCompletions,
             absl::StrCat(R"({"prompt": "x", "logprobs": 1, "stream": true,
                              "max_tokens": 300, "stop": ")",
                          std::string(stop_bytes, 'z'), "\"}")));
    std::string told;
    size_t tokens = 0;
    for (const json& chunk : chunks) {
      const json& choice = chunk["choices"][0];
      told += choice["text"].get<std::string>();
      if (choice["logprobs"].is_null()) continue;
      tokens += choice["logprobs"]["tokens"].size();
      EXPECT_LE(choice["logprobs"]["tokens"].size(), 4u);
    }
    const bool stops = stop_bytes < text.size();
    EXPECT_EQ(told, stops ? "" : text);
    EXPECT_EQ(tokens, stops ? stop_bytes : text.size());
  }
}

TEST_F(ApiTest, EveryErrorHasOpenAisForm) {
  HttpOptions options;
  options.limits.body_bytes = 1000;
  Start(options);
  const auto call = [this](const char* method, absl::string_view path,
                           const std::string& body, const char* headers) {
    return HttpClient(face_->port()).Call(method, path, body, headers);
  };
  struct Case {
    HttpReply reply;
    int status;
    const char* type;
  };
  const std::string model = R"({"model": "other", "prompt": "a"})";
  jobs_.RefuseWith(absl::ResourceExhaustedError("many jobs wait"));
  const HttpReply busy = Post(kCompletions, R"({"prompt": "a"})");
  jobs_.RefuseWith(absl::OkStatus());
  const Case cases[] = {
      {Post(kCompletions, "{}"), 400, "invalid_request_error"},
      {Post(kCompletions, model), 404, "not_found_error"},
      {Get("/v1/nothing"), 404, "not_found_error"},
      {call("DELETE", kChat, "", ""), 405, "invalid_request_error"},
      {call("PUT", "/v1/models", "", ""), 405, "invalid_request_error"},
      {Post(kChat, std::string(1001, ' ')), 413, "invalid_request_error"},
      {call("POST", kChat, "{}", "Content-Encoding: gzip\r\n"), 415,
       "invalid_request_error"},
      {busy, 429, "rate_limit_error"},
      {call("GET", "/version", "", "bad header\r\n"), 400,
       "invalid_request_error"}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.status);
    EXPECT_EQ(one.reply.status, one.status) << one.reply.body;
    EXPECT_EQ(one.reply.headers.at("content-type"), kJson);
    EXPECT_EQ(one.reply.headers.count("x-request-id"), 1u);
    const json error = json::parse(one.reply.body)["error"];
    ExpectKeys(error, {"message", "type", "param", "code"});
    EXPECT_EQ(error["type"], one.type);
    EXPECT_FALSE(error["message"].get<std::string>().empty());
  }
  const HttpReply head = call("HEAD", kChat, "", "");
  EXPECT_EQ(head.status, 405);
  EXPECT_EQ(head.body, "");
  for (const char* const type :
       {"text/plain", "application/json-patch+json", "application/jsonl"}) {
    HttpClient client(face_->port());
    client.Send(absl::StrCat("POST ", kChat, " HTTP/1.1\r\nHost: a\r\n",
                             "Content-Length: 2\r\nContent-Type: ", type,
                             "\r\n\r\n{}"));
    EXPECT_EQ(client.Read().status, 415) << type;
  }
  HttpClient client(face_->port());
  client.Send(absl::StrCat("POST ", kChat, " HTTP/1.1\r\nHost: a\r\n",
                           "Content-Length: 2\r\nContent-Type: ",
                           "Application/JSON ; charset=utf-8\r\n\r\n{}"));
  EXPECT_EQ(client.Read().status, 400);
}

TEST_F(ApiTest, AnAnswerThatFailsInAStreamEndsWithoutDone) {
  Start();
  HttpClient client(face_->port());
  client.SendRequest("POST", kChat,
                     absl::StrCat("{", kUserX, R"(, "stream": true})"));
  const auto job = jobs_.Await(0);
  ASSERT_NE(job, nullptr);
  job->OnToken({.id = Ids("x")[0]});
  ASSERT_TRUE(client.ReadUntil("\"content\":\"x\""));
  job->OnFailed(absl::DeadlineExceededError("the job's timeout has passed"));
  const HttpReply reply = client.Read();
  EXPECT_TRUE(reply.whole);  // The body ends at once.
  EXPECT_EQ(reply.body.find("[DONE]"), std::string::npos);
  const json error = json::parse(EventsOf(reply.body).back())["error"];
  ExpectKeys(error, {"message", "type", "param", "code"});
  EXPECT_EQ(error["type"], "timeout_error");
}

TEST_F(ApiTest, ABrowsersPageMayUseOpenAisClient) {
  HttpOptions options;
  options.access.cors_origins = {"https://page.example"};
  Start(options);
  const std::string origin = "Origin: https://page.example\r\n";
  const auto preflight = [&](const char* headers) {
    return HttpClient(face_->port())
        .Call("OPTIONS", kChat, "", absl::StrCat(origin, headers));
  };
  HttpReply reply = preflight("");
  EXPECT_EQ(reply.status, 200);
  for (const char* const method : {"GET", "POST", "OPTIONS"}) {
    EXPECT_THAT(reply.headers.at("access-control-allow-methods"),
                HasSubstr(method));
  }
  EXPECT_THAT(reply.headers.at("access-control-allow-headers"),
              HasSubstr("Authorization"));
  EXPECT_THAT(reply.headers.at("access-control-allow-headers"),
              HasSubstr("X-Api-Key"));
  const char kAsked[] = "authorization,content-type,x-stainless-retry-count";
  reply = preflight(
      absl::StrCat("Access-Control-Request-Headers: ", kAsked, "\r\n").c_str());
  EXPECT_EQ(reply.headers.at("access-control-allow-headers"), kAsked);
  // Errors can be read, too.
  reply = HttpClient(face_->port()).Call("POST", kChat, "{}", origin);
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.headers.at("access-control-allow-origin"),
            "https://page.example");
}

TEST_F(ApiTest, AModelsNameMayHaveASlash) {
  HttpOptions options;
  options.alias = "org/tiny";
  Start(options);
  for (const char* const path : {"/v1/models/org/tiny", "/v1/models/org%2Ftiny",
                                 "/v1/models/org%2ftin%79"}) {
    const HttpReply reply = Get(path);
    ASSERT_EQ(reply.status, 200) << path;
    EXPECT_EQ(json::parse(reply.body)["id"], "org/tiny");
  }
  for (const char* const path : {"/v1/models/org%2", "/v1/models/%zz"}) {
    EXPECT_EQ(Get(path).status, 404) << path;
  }
}

// vLLM's test of cancellation: many clients give up, then one is served.
TEST_F(ApiTest, ManyClientsThatGiveUpLeaveNothingBehind) {
  Start();
  constexpr size_t kClients = 100;
  for (size_t i = 0; i < kClients; ++i) {
    HttpClient client(face_->port());
    client.SendRequest("POST", kChat, absl::StrCat("{", kUserX, "}"));
    ASSERT_NE(jobs_.Await(i), nullptr);
  }
  for (size_t i = 0; i < kClients; ++i) {
    EXPECT_TRUE(jobs_.AwaitLeft(*jobs_.Await(i)));
  }
  Answer("x");
  EXPECT_EQ(Post(kChat, absl::StrCat("{", kUserX, "}")).status, 200);
}

// Pools of clients keep connections for up to 90 seconds.
TEST(HttpLimitsTest, IdleConnectionsOutliveThePoolsOfClients) {
  EXPECT_GE(HttpLimits().idle, absl::Seconds(120));
}

}  // namespace
}  // namespace ringfleet::coordinator
