// SPDX-License-Identifier: Apache-2.0
// The endpoints over loopback, with jobs that the test plays and the tokenizer
// of a bundled model.
#include "coordinator/http/api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/http/json_text.h"
#include "tests/coordinator/http/api_fixture.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/exposition.h"

namespace ringfleet::coordinator {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using testing::EventsOf;
using ::testing::HasSubstr;
using testing::HttpClient;
using testing::HttpReply;

TEST_F(ApiTest, AChatIsRenderedAndAnswered) {
  Start();
  Answer("Hello w\xC3\xB6rld");
  const HttpReply reply = Post(
      kChat,
      R"({"model": "tiny-v3", "messages": [{"role": "developer", "content": "S"},
          {"role": "user", "content": [{"type": "text", "text": "a"},
                                       {"type": "text", "text": "b"}]}],
          "max_completion_tokens": 7, "temperature": 0.5, "seed": -3,
          "user": "u", "metadata": {"a": "b"}, "store": true, "tools": [],
          "tool_choice": "none", "logit_bias": {}, "presence_penalty": 0,
          "repetition_penalty": 1.0, "some_new_field": [1], "priority": -2,
          "response_format": {"type": "text"}})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json body = json::parse(reply.body);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_THAT(body["id"].get<std::string>(), HasSubstr("chatcmpl-"));
  EXPECT_EQ(body["model"], "tiny-v3");
  EXPECT_TRUE(body["created"].is_number_integer());
  const json& choice = body["choices"][0];
  EXPECT_EQ(choice["message"],
            json::parse(R"({"role": "assistant", "content": "Hello wörld",
                            "refusal": null})"));
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_TRUE(choice.contains("matched_stop"));
  const Request& request = jobs_.Await(0)->request();
  const auto bos = (*model_->tokenizer())->bos_token();
  EXPECT_EQ(request.prompt_ids,
            Ids(absl::StrCat(bos, "S<｜User｜>ab<｜Assistant｜>")));
  EXPECT_EQ(request.max_tokens, 7u);
  EXPECT_EQ(request.priority, -2);
  EXPECT_EQ(request.sampling.temperature(), 0.5F);
  EXPECT_EQ(request.sampling.seed(), static_cast<uint64_t>(-3));
  EXPECT_THAT(request.stop_ids, ElementsAre(1u));
  EXPECT_EQ(body["usage"]["prompt_tokens"], request.prompt_ids.size());
  EXPECT_EQ(body["usage"]["completion_tokens"],
            Ids("Hello w\xC3\xB6rld").size());
  EXPECT_TRUE(jobs_.AwaitLeft(*jobs_.Await(0)));
}

TEST_F(ApiTest, AStreamHasTheEventsThatClientsExpect) {
  Start();
  Answer("Hello w\xC3\xB6rld", v1::FINISH_REASON_STOP);
  for (const bool usage : {false, true}) {
    const HttpReply reply = Post(
        kChat,
        absl::StrCat(
            R"({"messages": [{"role": "user", "content": "x"}],
                            "n": 2, "stream": true)",
            usage ? R"(, "stream_options":{"include_usage":true})" : "", "}"));
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_TRUE(reply.whole);
    EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream");
    const std::vector<std::string> events = EventsOf(reply.body);
    ASSERT_GT(events.size(), 5u);
    EXPECT_EQ(events.back(), "[DONE]");
    std::vector<int> roles(2), ends(2);
    std::string id;
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      const json event = json::parse(events[i]);
      if (i == 0) id = event["id"].get<std::string>();
      EXPECT_EQ(event["id"], id);
      EXPECT_EQ(event["object"], "chat.completion.chunk");
      const bool last = i + 2 == events.size();
      EXPECT_EQ(event.contains("usage"), usage);
      if (usage) {
        EXPECT_EQ(event["usage"].is_null(), !last);
      }
      if (usage && last) {
        EXPECT_EQ(event["choices"], json::array());
        continue;
      }
      const json& choice = event["choices"][0];
      const size_t index = choice["index"];
      if (choice["delta"].contains("role")) {
        EXPECT_EQ(++roles[index], 1);
        EXPECT_EQ(choice["delta"],
                  json::parse(R"({"role":"assistant","content":null})"));
      } else if (!choice["finish_reason"].is_null()) {
        EXPECT_EQ(++ends[index], 1);
        EXPECT_EQ(choice["finish_reason"], "stop");
        EXPECT_EQ(choice["delta"], json::object());
      } else {
        EXPECT_NE(choice["delta"]["content"], "");
        EXPECT_EQ(roles[index], 1);
      }
    }
    EXPECT_THAT(ends, ElementsAre(1, 1));
    EXPECT_EQ(TextOf(events, true, 0), "Hello w\xC3\xB6rld");
    EXPECT_EQ(TextOf(events, true, 1), "Hello w\xC3\xB6rld");
  }
  EXPECT_EQ(jobs_.Await(1)->request().sampling.sample(), 1u);
  EXPECT_EQ(jobs_.Await(0)->request().sampling.seed(),
            jobs_.Await(1)->request().sampling.seed());
}

TEST_F(ApiTest, CompletionsTakePromptsInAllForms) {
  Start();
  Answer("xy");
  const std::pair<const char*, std::vector<std::vector<uint32_t>>> cases[] = {
      {R"("ab")", {Ids("<｜begin▁of▁sentence｜>ab")}},
      {R"(["a", "b"])",
       {Ids("<｜begin▁of▁sentence｜>a"), Ids("<｜begin▁of▁sentence｜>b")}},
      {"[5, 6]", {{5, 6}}},
      {"[[5, 6], [7]]", {{5, 6}, {7}}},
      {R"([[5], "a"])", {{5}, Ids("<｜begin▁of▁sentence｜>a")}},
  };
  size_t next = 0;
  for (const auto& [prompt, ids] : cases) {
    SCOPED_TRACE(prompt);
    const HttpReply reply =
        Post(kCompletions, absl::StrCat(R"({"prompt": )", prompt, "}"));
    ASSERT_EQ(reply.status, 200) << reply.body;
    const json body = json::parse(reply.body);
    EXPECT_EQ(body["object"], "text_completion");
    ASSERT_EQ(body["choices"].size(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(body["choices"][i]["index"], i);
      EXPECT_EQ(body["choices"][i]["text"], "xy");
      EXPECT_EQ(jobs_.Await(next)->request().prompt_ids, ids[i]);
      EXPECT_EQ(jobs_.Await(next++)->request().max_tokens, 16u);
    }
  }
}

TEST_F(ApiTest, StopStringsEndAnswersAcrossTokens) {
  Start();
  Answer("one two three four");
  for (const char* const stream : {"false", "true"}) {
    for (const bool keeps : {false, true}) {
      const HttpReply reply =
          Post(kCompletions,
               absl::StrCat(R"({"prompt": "a", "stop": ["never", "wo th"], )",
                            R"("include_stop_str_in_output": )",
                            keeps ? "true" : "false", R"(, "stream": )", stream,
                            "}"));
      ASSERT_EQ(reply.status, 200) << reply.body;
      const std::string want = keeps ? "one two th" : "one t";
      if (stream[0] == 't') {
        const auto events = EventsOf(reply.body);
        EXPECT_EQ(TextOf(events, false), want);
        const json end = json::parse(events[events.size() - 2])["choices"][0];
        EXPECT_EQ(end["finish_reason"], "stop");
        EXPECT_EQ(end["stop_reason"], "wo th");
      } else {
        const json choice = json::parse(reply.body)["choices"][0];
        EXPECT_EQ(choice["text"], want);
        EXPECT_EQ(choice["finish_reason"], "stop");
      }
    }
  }
  // A beginning of a stop string that does not go on is text.
  const HttpReply reply =
      Post(kCompletions, R"({"prompt": "a", "stop": "four score"})");
  EXPECT_EQ(json::parse(reply.body)["choices"][0]["text"],
            "one two three four");
}

TEST_F(ApiTest, AJobEndsAtItsStopString) {
  Start();
  HttpClient client(face_->port());
  client.SendRequest("POST", kCompletions,
                     R"({"prompt": "a", "stop": "c", "stream": true})");
  const auto job = jobs_.Await(0);
  ASSERT_NE(job, nullptr);
  for (const uint32_t id : Ids("abcd")) job->OnToken({.id = id});
  EXPECT_TRUE(jobs_.AwaitLeft(*job));
  const HttpReply reply = client.Read();
  EXPECT_EQ(TextOf(EventsOf(reply.body), false), "ab");
}

TEST_F(ApiTest, RulesOfLogitsReachTheJob) {
  Start();
  Answer("x");
  const HttpReply reply =
      Post(kCompletions,
           R"({"prompt": "a", "logit_bias": {"5": -100, "7": 1.5},
          "presence_penalty": 0.5, "frequency_penalty": -0.5,
          "repetition_penalty": 1.25, "min_tokens": 3, "bad_words": ["no"],
          "stop_token_ids": [9], "ignore_eos": true, "top_k": 4,
          "min_p": 0.125})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Request& request = jobs_.Await(0)->request();
  ASSERT_EQ(request.sampling.logit_bias_size(), 2);
  EXPECT_EQ(request.sampling.logit_bias(0).id(), 5u);
  EXPECT_EQ(request.sampling.logit_bias(1).bias(), 1.5F);
  EXPECT_EQ(request.sampling.presence_penalty(), 0.5F);
  EXPECT_EQ(request.sampling.frequency_penalty(), -0.5F);
  EXPECT_EQ(request.sampling.repetition_penalty(), 1.25F);
  EXPECT_EQ(request.sampling.min_tokens(), 3u);
  EXPECT_GT(request.sampling.bad_words_size(), 0);
  EXPECT_EQ(request.sampling.top_k(), 4u);
  EXPECT_EQ(request.sampling.min_p(), 0.125F);
  EXPECT_THAT(request.stop_ids, ElementsAre(9u));
}

TEST_F(ApiTest, AKeyOwnsItsJobsAndHasLimits) {
  const testing::TempDir folder;
  const std::string keys = folder.File("keys");
  std::ofstream(keys) << "alice: alice-key\nbob: bob-key-1\n";
  HttpOptions options;
  options.access.api_key_file = keys;
  options.key_limits = {.jobs = 2, .tokens = 100};
  Start(options);
  const auto post = [this](const char* key, const char* body) {
    return HttpClient(face_->port())
        .Call("POST", kCompletions, body,
              absl::StrCat("Authorization: Bearer ", key, "\r\n"));
  };
  // Two jobs of one key that do not end.
  HttpClient streams(face_->port());
  ASSERT_TRUE(streams.SendRequest(
      "POST", kCompletions, R"({"prompt": "a", "max_tokens": 10, "n": 2})",
      "Authorization: Bearer alice-key\r\n"));
  ASSERT_NE(jobs_.Await(1), nullptr);
  EXPECT_EQ(jobs_.Await(0)->request().owner, "alice");
  const HttpReply many =
      post("alice-key", R"({"prompt": "a", "max_tokens": 1})");
  EXPECT_EQ(many.status, 429);
  EXPECT_THAT(many.body, HasSubstr("limit of 2 choices"));
  // Another key has limits of its own. A request beyond its tokens is alone.
  Answer("x");
  EXPECT_EQ(post("bob-key-1", R"({"prompt": "a", "max_tokens": 200})").status,
            200);
  const HttpReply tokens =
      post("bob-key-1", R"({"prompt": "a", "max_tokens": 60, "n": 2})");
  EXPECT_EQ(tokens.status, 429);
  EXPECT_THAT(tokens.body, HasSubstr("limit of 100 tokens in flight"));
  EXPECT_EQ(post("bob-key-1", R"({"prompt": "a", "max_tokens": 60})").status,
            200);
}

TEST_F(ApiTest, FieldsWithoutSupportAreNamed) {
  Start();
  const std::pair<const char*, const char*> cases[] = {
      {"tools", R"([{"type": "function"}])"},
      {"tool_choice", R"("required")"},
      {"response_format", R"({"type": "json_object"})"},
      {"logit_bias", R"({"5": 101})"},
      {"logit_bias", R"({"99999999": 1})"},
      {"logit_bias", R"({"x": 1})"},
      {"logit_bias", "[[5, 1]]"},
      {"presence_penalty", "2.5"},
      {"frequency_penalty", "-2.5"},
      {"repetition_penalty", "0"},
      {"logprobs", "21"},
      {"logprobs", "-1"},
      {"bad_words", R"([""])"},
      {"bad_words", R"("word")"},
      {"min_tokens", "-1"},
      {"prompt_logprobs", "-1"},
      {"prompt_logprobs", "21"},
      {"suffix", R"("x")"},
      {"best_of", "3"},
      {"structured_outputs", R"({"regex": "a"})"},
      {"guided_json", R"({"type": "object"})"},
      {"skip_special_tokens", "false"},
      {"stream_reasoning", "false"},
      {"temperature", "3"},
      {"temperature", R"("hot")"},
      {"temperature", "true"},
      {"top_p", "0"},
      {"top_p", "1e300"},
      {"n", "0"},
      {"n", "129"},
      {"n", "1.5"},
      {"max_tokens", "0"},
      {"max_tokens", "-1"},
      {"max_completion_tokens", "0"},
      {"seed", R"("x")"},
      {"seed", "1e30"},
      {"stop", R"([""])"},
      {"stop", "5"},
      {"stop_token_ids", "[99999999]"},
      {"stream_options", R"({"include_usage": true})"},
      {"prompt", "null"},
      {"prompt", "5"},
      {"prompt", "[]"},
      {"prompt", "[5, -1]"},
      {"prompt", "[5.5]"},
      {"prompt", R"(["a", null])"},
      {"prompt", "[99999999]"},
      {"stream", R"("yes")"},
  };
  for (const auto& [name, value] : cases) {
    SCOPED_TRACE(absl::StrCat(name, ": ", value));
    const bool prompt = std::string(name) == "prompt";
    const HttpReply reply =
        Post(kCompletions, absl::StrCat("{", prompt ? "" : R"("prompt": "a", )",
                                        "\"", name, "\": ", value, "}"));
    ASSERT_EQ(reply.status, 400) << reply.body;
    const json error = json::parse(reply.body)["error"];
    EXPECT_EQ(error["param"], name);
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_TRUE(error.contains("code"));
  }
}

TEST_F(ApiTest, MalformedChatsAreNamed) {
  Start();
  const std::pair<const char*, const char*> cases[] = {
      {"null", "messages"},
      {"\"x\"", "messages"},
      {"[]", "messages"},
      {"[123]", "messages[0]"},
      {"[{}]", "messages[0].role"},
      {R"([{"role": 123, "content": "a"}])", "messages[0].role"},
      {R"([{"role": "robot", "content": "a"}])", "messages[0].role"},
      {R"([{"role": "user"}])", "messages[0].content"},
      {R"([{"role": "user", "content": 123}])", "messages[0].content"},
      {R"([{"role": "user", "content": [{"type": "image_url"}]}])",
       "messages[0].content[0].type"},
      {R"([{"role": "user", "content": [{"type": "text"}]}])",
       "messages[0].content[0].text"},
  };
  for (const auto& [messages, param] : cases) {
    SCOPED_TRACE(messages);
    const HttpReply reply =
        Post(kChat, absl::StrCat(R"({"messages": )", messages, "}"));
    ASSERT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(json::parse(reply.body)["error"]["param"], param);
  }
}

TEST_F(ApiTest, ContextOverflowHasTheNumbers) {
  Start();
  std::vector<uint32_t> ids(600, 5);
  for (const std::string& body :
       {absl::StrCat(R"({"prompt": )", json(ids).dump(), "}"),
        absl::StrCat(R"({"stream": true, "prompt": ")",
                     std::string(100'000, 'a'), "\"}"),
        std::string(R"({"prompt": [1, 2], "max_tokens": 511})")}) {
    const HttpReply reply = Post(kCompletions, body);
    ASSERT_EQ(reply.status, 400) << reply.body;
    const json error = json::parse(reply.body)["error"];
    EXPECT_EQ(error["type"], "exceed_context_size_error");
    EXPECT_EQ(error["code"], "context_length_exceeded");
    EXPECT_GT(error["n_prompt_tokens"], 0);
    EXPECT_EQ(error["n_ctx"], 512);
  }
  Answer("x");
  EXPECT_EQ(
      Post(kCompletions, R"({"prompt": [1, 2], "max_tokens": 510})").status,
      200);
}

TEST_F(ApiTest, RoutesMethodsAndTypes) {
  Start();
  const auto error = [](const HttpReply& reply) {
    return json::parse(reply.body)["error"]["type"].get<std::string>();
  };
  EXPECT_EQ(error(Get("/nothing")), "not_found_error");
  HttpReply reply = Get(kChat);
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.headers.at("allow"), "POST, OPTIONS");
  reply = Post("/v1/models", "{}");
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.headers.at("allow"), "GET, HEAD, OPTIONS");
  HttpClient client(face_->port());
  client.Send(absl::StrCat("POST ", kChat,
                           " HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain"
                           "\r\nContent-Length: 2\r\n\r\n{}"));
  EXPECT_EQ(client.Read().status, 415);
  EXPECT_EQ(HttpClient(face_->port())
                .Call("POST", kChat, "{}", "Content-Encoding: gzip\r\n")
                .status,
            415);
  EXPECT_EQ(HttpClient(face_->port()).Call("HEAD", "/health").status, 200);
  EXPECT_EQ(HttpClient(face_->port()).Call("OPTIONS", kChat).status, 200);
  reply = Post(kChat, R"({"model": "gpt", "messages": []})");
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(json::parse(reply.body)["error"]["code"], "model_not_found");
  const json models = json::parse(Get("/v1/models").body);
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "tiny-v3");
  EXPECT_EQ(models["data"][0]["max_model_len"], 512);
  EXPECT_EQ(json::parse(Get("/v1/models/tiny-v3").body), models["data"][0]);
  EXPECT_EQ(Get("/v1/models/other").status, 404);
  EXPECT_TRUE(json::parse(Get("/version").body)["version"].is_string());
}

TEST_F(ApiTest, HostileJsonIsRefused) {
  Start();
  std::string many = "[0";
  for (int i = 0; i < 1'000'000; ++i) many += ",0";
  std::string keys = R"({"prompt": "a", "logit_bias": {"k": 0)";
  for (int i = 0; i < 100'000; ++i) absl::StrAppend(&keys, ",\"", i, "\":0");
  const std::pair<std::string, const char*> cases[] = {
      {"", "not valid JSON"},
      {"[]", "not a JSON object"},
      {"{\"prompt\": \"a\"", "not valid JSON"},
      {std::string(100'000, '['), "nested too deeply"},
      {"{\"a\":" + std::string(65, '[') + std::string(65, ']') + "}",
       "nested too deeply"},
      {R"({"prompt": "a", "temperature": 1e999})", "too large"},
      {R"({"prompt": "a", "seed": 99999999999999999999999999})", "seed"},
      {"{\"prompt\": \"\xff\xfe\"}", "not valid JSON in UTF-8"},
      {"{\"prompt\": \"\xed\xa0\x80\"}", "not valid JSON in UTF-8"},
      {R"({"prompt": "\ud800"})", "not valid JSON"},
      {R"({"prompt": "\udc00x"})", "not valid JSON"},
      {R"({"prompt": "a", "stop": )" + many + "]}", "500000 values"},
      {keys + "}}", "1024 keys"},
      {std::string("{\"prompt\": \"a\0\"}", 15), "not valid JSON"},
  };
  for (const auto& [body, message] : cases) {
    SCOPED_TRACE(body.substr(0, 60));
    HttpClient client(face_->port());
    client.SendRequest("POST", kCompletions, body.empty() ? " " : body);
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, 400);
    EXPECT_THAT(json::parse(reply.body)["error"]["message"].get<std::string>(),
                HasSubstr(message));
  }
}

TEST_F(ApiTest, MutatedRequestsAreAnswered) {
  Start();
  Answer("x");
  const std::string seed =
      R"({"messages": [{"role": "user", "content": "a\u00e9"}], "n": 2,)"
      R"("stop": ["b"], "temperature": 0.5, "stream": false, "max_tokens": 5})";
  std::mt19937 random(7);
  HttpClient client(face_->port());
  for (int i = 0; i < 300; ++i) {
    std::string body = seed;
    for (int k = 0; k < 3; ++k) {
      const size_t at = random() % body.size();
      if (random() % 2 == 0) {
        body[at] = static_cast<char>(random());
      } else {
        body.erase(at, random() % 5);
      }
    }
    const HttpReply reply = client.Call("POST", kChat, body);
    ASSERT_TRUE(reply.status == 200 || reply.status == 400 ||
                reply.status == 404)
        << reply.status << " for " << body;
    EXPECT_TRUE(json::accept(reply.body)) << reply.body;
  }
}

TEST_F(ApiTest, AClientThatLeavesEndsItsJobs) {
  Start();
  {
    HttpClient waiting(face_->port());
    waiting.SendRequest("POST", kCompletions, R"({"prompt": "a", "n": 2})");
    ASSERT_NE(jobs_.Await(1), nullptr);
  }
  EXPECT_TRUE(jobs_.AwaitLeft(*jobs_.Await(0)));
  EXPECT_TRUE(jobs_.AwaitLeft(*jobs_.Await(1)));
  {
    HttpClient streaming(face_->port());
    streaming.SendRequest("POST", kCompletions,
                          R"({"prompt": "a", "stream": true})");
    jobs_.Await(2)->OnToken({.id = Ids("x")[0]});
    ASSERT_TRUE(streaming.ReadUntil("data: "));
  }
  EXPECT_TRUE(jobs_.AwaitLeft(*jobs_.Await(2)));
}

TEST_F(ApiTest, ErrorsComeBeforeTheHeadOrAsTheLastEvent) {
  Start();
  HttpClient whole(face_->port());
  whole.SendRequest("POST", kCompletions, R"({"prompt": "a", "stream": true})");
  jobs_.Await(0)->OnFailed(absl::UnavailableError("a host is lost"));
  HttpReply reply = whole.Read();
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.headers.at("retry-after"), "1");
  EXPECT_EQ(json::parse(reply.body)["error"]["message"], "a host is lost");
  HttpClient stream(face_->port());
  stream.SendRequest("POST", kCompletions,
                     R"({"prompt": "a", "stream": true})");
  jobs_.Await(1)->OnToken({.id = Ids("x")[0]});
  ASSERT_TRUE(stream.ReadUntil("data: "));
  jobs_.Await(1)->OnFailed(absl::InternalError("NaN"));
  reply = stream.Read();
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(reply.whole);
  const auto events = EventsOf(reply.body);
  EXPECT_EQ(json::parse(events.back())["error"]["message"], "NaN");
}

// A client that balances asks another fleet.
TEST_F(ApiTest, AFailedFleetIsUnavailableWhateverFailedIt) {
  Start();
  size_t job = 0;
  for (const absl::StatusCode code :
       {absl::StatusCode::kFailedPrecondition, absl::StatusCode::kDataLoss,
        absl::StatusCode::kDeadlineExceeded}) {
    HttpClient client(face_->port());
    client.SendRequest("POST", kCompletions, R"({"prompt": "a"})");
    absl::Status cause(code, "another checkpoint");
    cause.SetPayload(kFleetFailedPayload, absl::Cord());
    jobs_.Await(job++)->OnFailed(cause);
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, 503);
    EXPECT_EQ(reply.headers.at("retry-after"), "1");
    EXPECT_EQ(json::parse(reply.body)["error"]["message"],
              "another checkpoint");
  }
}

TEST_F(ApiTest, SilentStreamsGetTheirHeadAndComments) {
  HttpOptions options;
  options.limits.silence = absl::Milliseconds(20);
  Start(options);
  HttpClient client(face_->port());
  client.SendRequest("POST", kChat,
                     R"({"messages": [{"role": "user", "content": "x"}],
                         "stream": true})");
  ASSERT_TRUE(client.ReadUntil(": waiting\n\n"));
  EXPECT_THAT(client.received(), HasSubstr("\"role\":\"assistant\""));
  jobs_.Await(0)->OnFinished(v1::FINISH_REASON_STOP, {});
  EXPECT_EQ(EventsOf(client.Read().body).back(), "[DONE]");
}

TEST_F(ApiTest, LimitsAndLoadAreToldWithRetryAfter) {
  HttpOptions options;
  options.most_jobs = 2;
  Start(options);
  HttpClient first(face_->port());
  first.SendRequest("POST", kCompletions, R"({"prompt": "a", "n": 2})");
  ASSERT_NE(jobs_.Await(1), nullptr);
  HttpReply reply = Post(kCompletions, R"({"prompt": "a"})");
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.headers.at("retry-after"), "1");
  EXPECT_EQ(json::parse(reply.body)["error"]["type"], "rate_limit_error");
  jobs_.Await(0)->OnFinished(v1::FINISH_REASON_STOP, {});
  jobs_.Await(1)->OnFinished(v1::FINISH_REASON_STOP, {});
  EXPECT_EQ(first.Read().status, 200);
  jobs_.RefuseWith(absl::ResourceExhaustedError("9 jobs are waiting"));
  EXPECT_EQ(Post(kCompletions, R"({"prompt": "a"})").status, 429);
}

TEST_F(ApiTest, AServerIsReadyWithItsFleetAndUntilItEnds) {
  jobs_.SetReady(false);
  Start();
  EXPECT_EQ(Get("/health").status, 503);
  EXPECT_EQ(Get("/ready").status, 503);
  EXPECT_EQ(Post(kCompletions, R"({"prompt": "a"})").status, 503);
  jobs_.SetReady(true);
  EXPECT_EQ(Get("/health").body, R"({"status":"ok"})");
  EXPECT_EQ(Get("/ready").status, 200);
  HttpClient running(face_->port());
  running.SendRequest("POST", kCompletions, R"({"prompt": "a"})");
  const auto job = jobs_.Await(0);
  ASSERT_NE(job, nullptr);
  // A fleet that forms again keeps its jobs.
  jobs_.SetReady(false);
  EXPECT_EQ(Get("/ready").status, 503);
  HttpClient waiting(face_->port());
  waiting.SendRequest("POST", kCompletions, R"({"prompt": "a"})");
  ASSERT_NE(jobs_.Await(1), nullptr);
  jobs_.SetReady(true);
  EXPECT_FALSE(face_->Drain(cluster::Deadline::After(absl::ZeroDuration())));
  EXPECT_EQ(Get("/health").status, 200);
  EXPECT_EQ(Get("/ready").status, 503);
  EXPECT_EQ(Post(kCompletions, R"({"prompt": "a"})").status, 503);
  job->OnFinished(v1::FINISH_REASON_STOP, {});
  jobs_.Await(1)->OnFailed(absl::UnavailableError("the coordinator stops"));
  EXPECT_EQ(running.Read().status, 200);
  EXPECT_EQ(waiting.Read().status, 503);
  EXPECT_TRUE(face_->Drain(testing::Soon()));
}

TEST_F(ApiTest, TokenEndpoints) {
  Start();
  const std::string text = "Hello w\xC3\xB6rld";
  const json tokens = json(Ids(text));
  json reply = json::parse(Post("/tokenize", R"({"prompt": "Hello wörld",
             "add_special_tokens": false, "return_token_strs": true})")
                               .body);
  EXPECT_EQ(reply["tokens"], tokens);
  EXPECT_EQ(reply["count"], tokens.size());
  EXPECT_EQ(reply["max_model_len"], 512);
  EXPECT_EQ(reply["token_strs"].size(), tokens.size());
  EXPECT_EQ(
      json::parse(
          Post("/tokenize", R"({"content": "Hello wörld"})").body)["tokens"],
      tokens);
  EXPECT_EQ(
      json::parse(
          Post("/tokenize", R"({"prompt": "Hello wörld"})").body)["tokens"][0],
      *(*model_->tokenizer())->bos_id());
  for (const char* const name : {"prompt", "content", "text"}) {
    EXPECT_EQ(
        json::parse(Post("/detokenize",
                         absl::StrCat("{\"tokens\": ", tokens.dump(), "}"))
                        .body)[name],
        text);
  }
  reply = json::parse(Post("/tokenize", R"({"content": "a\ud83d\ude00",
                                           "with_pieces": true})")
                          .body)["tokens"];
  EXPECT_EQ(reply[0], json({{"id", Ids("a")[0]}, {"piece", "a"}}));
  std::string pieces;
  for (const json& token : reply) {
    if (token["piece"].is_string()) continue;
    for (const json& byte : token["piece"]) {
      pieces += static_cast<char>(byte.get<int>());
    }
  }
  EXPECT_EQ(pieces, "\xF0\x9F\x98\x80");
  EXPECT_EQ(Post("/detokenize", R"({"tokens": [99999999]})").status, 400);
  const std::string chat =
      R"({"messages": [{"role": "user", "content": "a"},
                       {"role": "assistant", "content": "b"}])";
  const std::string bos = (*model_->tokenizer())->bos_token();
  EXPECT_EQ(
      json::parse(Post("/apply-template", chat + "}").body)["prompt"],
      bos + "<｜User｜>a<｜Assistant｜>b<｜end▁of▁sentence｜><｜Assistant｜>");
  EXPECT_EQ(json::parse(Post("/apply-template",
                             chat + R"(, "continue_final_message": true})")
                            .body)["prompt"],
            bos + "<｜User｜>a<｜Assistant｜>b");
  EXPECT_EQ(Post("/apply-template", chat + R"(, "continue_final_message": true,
                                             "add_generation_prompt": true})")
                .status,
            400);
  EXPECT_EQ(json::parse(Post("/tokenize", chat + "}").body)["tokens"],
            json(Ids(bos + "<｜User｜>a<｜Assistant｜>b<｜end▁of▁sentence｜>"
                           "<｜Assistant｜>")));
  const json info = json::parse(Get("/tokenizer_info").body);
  EXPECT_EQ(info["tokenizer_class"], "LlamaTokenizerFast");
  EXPECT_EQ(info["eos_token"], (*model_->tokenizer())->eos_token());
  EXPECT_THAT(info["chat_template"].get<std::string>(), HasSubstr("messages"));
}

TEST_F(ApiTest, KeysGuardAllButHealthAndPreflights) {
  const testing::TempDir folder;
  const std::string path = folder.File("keys");
  std::ofstream(path) << "# keys\nalice: alice-secret\n";
  HttpOptions options;
  options.access.api_key_file = path;
  options.access.cors_origins = {"https://page.example"};
  Start(options);
  HttpReply reply = Post(kCompletions, R"({"prompt": "a"})");
  EXPECT_EQ(reply.status, 401);
  EXPECT_EQ(json::parse(reply.body)["error"]["type"], "authentication_error");
  EXPECT_EQ(reply.headers.at("www-authenticate"), "Bearer");
  EXPECT_EQ(Get("/metrics").status, 401);
  EXPECT_EQ(Get("/health").status, 200);
  Answer("x");
  for (const char* const header :
       {"Authorization: Bearer alice-secret\r\n", "x-api-key: alice-secret\r\n",
        "authorization: bearer  alice-secret\r\n"}) {
    EXPECT_EQ(HttpClient(face_->port())
                  .Call("POST", kCompletions, R"({"prompt": "a"})", header)
                  .status,
              200);
  }
  for (const char* const header :
       {"Authorization: Bearer alice\r\n", "Authorization: alice-secret\r\n",
        "X-Api-Key: \r\n"}) {
    EXPECT_EQ(HttpClient(face_->port())
                  .Call("POST", kCompletions, R"({"prompt": "a"})", header)
                  .status,
              401);
  }
  const auto preflight = [this](const std::string& origin) {
    return HttpClient(face_->port())
        .Call("OPTIONS", kChat, "", absl::StrCat("Origin: ", origin, "\r\n"));
  };
  reply = preflight("https://page.example");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("access-control-allow-origin"),
            "https://page.example");
  EXPECT_THAT(reply.headers.at("access-control-allow-headers"),
              HasSubstr("Authorization"));
  EXPECT_EQ(preflight("https://other.example")
                .headers.count("access-control-allow-origin"),
            0u);
}

TEST_F(ApiTest, MetricsHaveTheNamesOfVllm) {
  Start();
  Answer("abc");
  Post(kCompletions, R"({"prompt": [5, 6]})");
  Get("/no/such\"path");
  const HttpReply reply = Get("/metrics");
  EXPECT_THAT(testing::ExpositionReader::Read(reply.body).problems,
              ::testing::IsEmpty());
  EXPECT_THAT(reply.headers.at("content-type"), HasSubstr("version=0.0.4"));
  for (const char* const line :
       {"vllm:num_requests_running{model_name=\"tiny-v3\"} 3\n",
        "vllm:num_requests_waiting{model_name=\"tiny-v3\"} 2\n",
        "vllm:prompt_tokens_total{model_name=\"tiny-v3\"} 2\n",
        "finished_reason=\"length\"} 1\n",
        "vllm:e2e_request_latency_seconds_count{model_name=\"tiny-v3\"} 1\n",
        "vllm:request_queue_time_seconds_count{model_name=\"tiny-v3\"} 1\n",
        "vllm:request_prompt_tokens_sum{model_name=\"tiny-v3\"} 2\n",
        "http_requests_total{handler=\"none\",method=\"GET\",status=\"4xx\"} "
        "1\n",
        "http_requests_total{handler=\"/v1/completions\",method=\"POST\","
        "status=\"2xx\"} 1\n",
        "ringfleet_access_loads_total{files=\"tls\",outcome=\"taken\"} 0\n",
        "le=\"+Inf\"} 1\n", "# TYPE vllm:time_to_first_token_seconds histo"}) {
    EXPECT_THAT(reply.body, HasSubstr(line));
  }
}

TEST_F(ApiTest, OtherAddressesWantTlsAndKeys) {
  HttpOptions options;
  options.listen = {"0.0.0.0", 0};
  const auto face = HttpFace::Start(options, model_, kTinyModel, &jobs_);
  EXPECT_THAT(std::string(face.status().message()),
              HasSubstr("0.0.0.0 is not a loopback address"));
  options.allow_insecure = true;
  EXPECT_TRUE(HttpFace::Start(options, model_, kTinyModel, &jobs_).ok());
}

}  // namespace
}  // namespace ringfleet::coordinator
