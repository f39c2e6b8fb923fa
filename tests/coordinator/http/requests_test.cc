// SPDX-License-Identifier: Apache-2.0
// The fields and messages that clients send, in all their spellings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/http/api_fixture.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::coordinator {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HttpReply;

constexpr char kAskX[] = R"("messages": [{"role": "user", "content": "x"}])";

class RequestsTest : public ApiTest {
 protected:
  void SetUp() override {
    Start();
    Answer("y");
  }
  HttpReply PostPrompt(const std::string& fields) {
    return Post(kCompletions,
                absl::StrCat(R"({"prompt": [5, 6])", fields.empty() ? "" : ", ",
                             fields, "}"));
  }
  HttpReply PostChat(const std::string& fields) {
    return Post(kChat, absl::StrCat("{", kAskX, fields.empty() ? "" : ", ",
                                    fields, "}"));
  }
  // Returns the last job.
  const Request& Last() { return jobs_.Await(jobs_.started() - 1)->request(); }
  // Returns the field that a refusal names.
  static std::string ParamOf(const HttpReply& reply) {
    EXPECT_EQ(reply.status, 400) << reply.body;
    const json param = json::parse(reply.body)["error"]["param"];
    return param.is_string() ? param.get<std::string>() : "";
  }
  std::string Rendered(const std::string& messages) {
    const HttpReply reply =
        Post("/apply-template", absl::StrCat("{\"messages\": ", messages, "}"));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json::parse(reply.body).value("prompt", "");
  }
};

TEST_F(RequestsTest, FieldsThatChangeNothingAreAccepted) {
  const HttpReply reply = PostChat(
      R"("store": true, "metadata": {"a": "b"}, "user": "u",
         "service_tier": "auto", "prompt_cache_key": "k", "verbosity": "low",
         "safety_identifier": "s", "prediction": {"type": "content"},
         "modalities": ["text"], "parallel_tool_calls": true, "tools": [],
         "tool_choice": "auto", "response_format": {"type": "text"},
         "request_id": "r", "cache_salt": "c", "cache_prompt": true,
         "id_slot": 0, "timings_per_token": true, "session_id": "s",
         "repeat_penalty": 1.0, "typical_p": 1, "mirostat": 0,
         "dry_multiplier": 0.0, "length_penalty": 1, "suffix": "",
         "invented": {"deep": [1, {"x": null}]}, "best_of": 1)");
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(PostPrompt(R"("n": 2, "best_of": 2)").status, 200);
}

TEST_F(RequestsTest, FieldsThatWouldChangeTheAnswerAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"tools", R"([{"type": "function", "function": {"name": "f"}}])"},
      {"functions", R"([{"name": "f"}])"},
      {"tool_choice", R"("required")"},
      {"tool_choice", R"({"type": "function", "function": {"name": "f"}})"},
      {"response_format", R"({"type": "json_object"})"},
      {"response_format", R"({"type": "json_schema", "json_schema": {}})"},
      {"response_format", R"({"type": "hiccup"})"},
      {"response_format", R"("text")"},
      {"response_format", "{}"},
      {"json_schema", R"({"const": "42"})"},
      {"grammar", R"("root ::= [a]")"},
      {"regex", R"("a+")"},
      {"modalities", R"(["text", "audio"])"},
      {"audio", R"({"voice": "x"})"},
      {"n_predict", "5"},
      {"mirostat", "2"},
      {"repeat_penalty", "1.1"},
      {"return_tokens_as_token_ids", "true"},
      {"truncate_prompt_tokens", "5"},
      {"chat_template", R"("{{ 1 }}")"},
      {"echo", "true"}};
  for (const auto& [name, value] : cases) {
    SCOPED_TRACE(absl::StrCat(name, ": ", value));
    EXPECT_EQ(ParamOf(PostChat(absl::StrCat("\"", name, "\": ", value))), name);
  }
  EXPECT_EQ(jobs_.started(), 0u);
}

TEST_F(RequestsTest, FieldsThatExcludeEachOtherAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("top_logprobs": 2)", "top_logprobs"},
      {R"("top_logprobs": 2, "logprobs": false)", "top_logprobs"},
      {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs"},
      {R"("stream_options": {"include_usage": true})", "stream_options"},
      {R"("stream": false, "stream_options": {})", "stream_options"},
      {R"("stream": true, "prompt_logprobs": 1)", "prompt_logprobs"},
      {R"("stream": true, "stream_options": {"include_usage": 1})",
       "stream_options.include_usage"},
      {R"("continue_final_message": true, "add_generation_prompt": true)",
       "continue_final_message"}};
  for (const auto& [fields, param] : cases) {
    EXPECT_EQ(ParamOf(PostChat(fields)), param) << fields;
  }
}

TEST_F(RequestsTest, NullIsAbsent) {
  for (const char* const name : {"model",
                                 "max_tokens",
                                 "max_completion_tokens",
                                 "temperature",
                                 "top_p",
                                 "top_k",
                                 "min_p",
                                 "presence_penalty",
                                 "frequency_penalty",
                                 "repetition_penalty",
                                 "logit_bias",
                                 "bad_words",
                                 "seed",
                                 "n",
                                 "best_of",
                                 "min_tokens",
                                 "stop",
                                 "stop_token_ids",
                                 "include_stop_str_in_output",
                                 "ignore_eos",
                                 "stream",
                                 "stream_options",
                                 "logprobs",
                                 "top_logprobs",
                                 "prompt_logprobs",
                                 "priority",
                                 "timeout",
                                 "tools",
                                 "tool_choice",
                                 "response_format",
                                 "modalities",
                                 "chat_template_kwargs",
                                 "reasoning_effort",
                                 "thinking",
                                 "enable_thinking",
                                 "suffix",
                                 "add_generation_prompt",
                                 "continue_final_message",
                                 "echo"}) {
    const std::string field = absl::StrCat("\"", name, "\": null");
    EXPECT_EQ(PostChat(field).status, 200) << name;
    EXPECT_EQ(PostPrompt(field).status, 200) << name;
  }
}

TEST_F(RequestsTest, NumbersHaveManySpellings) {
  const std::pair<const char*, uint32_t> integers[] = {
      {"5", 5}, {"5.0", 5}, {"1e1", 10}, {"100e-1", 10}};
  for (const auto& [text, value] : integers) {
    EXPECT_EQ(PostPrompt(absl::StrCat("\"max_tokens\": ", text)).status, 200);
    EXPECT_EQ(Last().max_tokens, value) << text;
  }
  EXPECT_EQ(PostPrompt(R"("temperature": -0.0, "seed": -0, "top_k": -1,
                           "presence_penalty": -0, "priority": -0.0)")
                .status,
            200);
  EXPECT_EQ(Last().sampling.temperature(), 0);
  EXPECT_EQ(PostPrompt(R"("seed": 9223372036854775807)").status, 200);
  EXPECT_EQ(Last().sampling.seed(), 9223372036854775807u);
  const std::pair<const char*, const char*> wrong[] = {
      {"max_tokens", "5.5"},
      {"max_tokens", "true"},
      {"max_tokens", R"("5")"},
      {"max_tokens", "[5]"},
      {"max_tokens", "99999999999999999999999999999"},
      {"max_tokens", "-9223372036854775808"},
      {"seed", "9223372036854775808"},
      {"seed", "1e300"},
      {"top_k", "-2"},
      {"n", "1e-400"},
      {"temperature", "2.0001"},
      {"temperature", "-0.1"},
      {"top_p", "1.1"},
      {"min_p", "-1"},
      {"presence_penalty", "-2.1"}};
  for (const auto& [name, value] : wrong) {
    EXPECT_EQ(ParamOf(PostPrompt(absl::StrCat("\"", name, "\": ", value))),
              name)
        << value;
  }
  // Beyond a double there is no number to name.
  EXPECT_THAT(PostPrompt(R"("temperature": 1e999)").body,
              HasSubstr("a number that is too large"));
}

TEST_F(RequestsTest, TextsOfJsonAreReadAsTheStandardSays) {
  const auto prompt = [this](const std::string& body) {
    const HttpReply reply = Post(kCompletions, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    std::vector<uint32_t> ids = Last().prompt_ids;
    ids.erase(ids.begin());  // The BOS.
    return ids;
  };
  EXPECT_EQ(prompt(R"({"prompt": "\ud83d\ude00"})"), Ids("\xF0\x9F\x98\x80"));
  EXPECT_EQ(prompt(R"({"prompt": "a\u0000b"})"), Ids(std::string("a\0b", 3)));
  EXPECT_EQ(prompt("\xEF\xBB\xBF{\"prompt\": \"a\"}"), Ids("a"));
  EXPECT_EQ(prompt("\r\n\t {\"prompt\":\"a\"} \n"), Ids("a"));
  // The last one of two equal keys counts.
  EXPECT_EQ(prompt(R"({"prompt": "a", "prompt": "b"})"), Ids("b"));
  for (const char* const body :
       {R"({"prompt": "\ud83d"})", R"({"prompt": "\ude00"})",
        R"({"prompt": "\ud83dx"})", "{\"prompt\": \"\x80\"}",
        "{\"prompt\": \"\xF0\x9F\x98\"}", "{\"prompt\": \"\xC0\x80\"}",
        "{\"prompt\": \"a\nb\"}", R"({"prompt": "a",})", R"({'prompt': "a"})",
        R"({"prompt": "a"} x)", R"({"prompt": NaN})", R"({"prompt": 01})",
        "// c\n{\"prompt\": \"a\"}"}) {
    const HttpReply reply = Post(kCompletions, body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_THAT(reply.body, HasSubstr("not valid JSON in UTF-8 at byte"))
        << body;
  }
}

TEST_F(RequestsTest, StopsAreATextOrAList) {
  std::string many;
  for (int i = 0; i < 16; ++i) absl::StrAppend(&many, i ? "," : "", "\"s\"");
  for (const std::string& stop :
       {std::string("\"a\""), std::string("[]"), std::string("[\"a\", \"b\"]"),
        absl::StrCat("[", many, "]"),
        absl::StrCat("\"", std::string(256, 'a'), "\"")}) {
    EXPECT_EQ(PostPrompt(absl::StrCat("\"stop\": ", stop)).status, 200) << stop;
  }
  for (const std::string& stop :
       {std::string("\"\""), std::string("[\"a\", \"\"]"),
        std::string("[null]"), std::string("{}"), std::string("[[\"a\"]]"),
        absl::StrCat("[", many, ",\"s\"]"),
        absl::StrCat("\"", std::string(257, 'a'), "\"")}) {
    EXPECT_EQ(ParamOf(PostPrompt(absl::StrCat("\"stop\": ", stop))), "stop")
        << stop;
  }
}

TEST_F(RequestsTest, LengthsHaveDefaultsAndTwoNames) {
  EXPECT_EQ(PostPrompt("").status, 200);
  EXPECT_EQ(Last().max_tokens, 16u);
  // A chat gets the server's default, as far as the context goes.
  EXPECT_EQ(PostChat("").status, 200);
  EXPECT_EQ(Last().max_tokens + Last().prompt_ids.size(), 513u);
  EXPECT_EQ(PostChat(R"("max_tokens": 3, "max_completion_tokens": 7)").status,
            200);
  EXPECT_EQ(Last().max_tokens, 7u);
  for (const char* const name : {"max_tokens", "max_completion_tokens"}) {
    for (const char* const value : {"0", "-1", "512", "100000"}) {
      EXPECT_EQ(ParamOf(PostChat(absl::StrCat("\"", name, "\": ", value))),
                name);
    }
  }
  EXPECT_EQ(PostPrompt(R"("max_tokens": 0, "echo": true)").status, 200);
  EXPECT_EQ(Last().max_tokens, 0u);
  HttpOptions options;
  options.default_max_tokens = 9;
  Start(options);
  EXPECT_EQ(PostChat("").status, 200);
  EXPECT_EQ(Last().max_tokens, 9u);
}

TEST_F(RequestsTest, ChoicesAreNumberedByPromptsFirst) {
  const HttpReply reply = Post(
      kCompletions, R"({"prompt": [[0, 0, 0], [7], "a"], "n": 2, "seed": 5})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json choices = json::parse(reply.body)["choices"];
  ASSERT_EQ(choices.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(choices[i]["index"], i);
    EXPECT_EQ(jobs_.Await(i)->request().sampling.sample(), i % 2);
  }
  EXPECT_THAT(jobs_.Await(1)->request().prompt_ids, ElementsAre(0u, 0u, 0u));
  EXPECT_THAT(jobs_.Await(2)->request().prompt_ids, ElementsAre(7u));
}

TEST_F(RequestsTest, MessagesComeInAllForms) {
  const std::string bos = (*model_->tokenizer())->bos_token();
  EXPECT_EQ(Rendered(R"([{"role": "system", "content": "S"},
                         {"role": "user", "name": "ann", "content": "q"},
                         {"role": "developer", "content": "D"},
                         {"role": "user", "content": [
                            {"type": "text", "text": "a",
                             "cache_control": {"type": "ephemeral"}},
                            {"type": "text", "text": "b"}, "c"]}])"),
            bos + "S<｜User｜>qD<｜User｜>abc<｜Assistant｜>");
  // The template of this model takes a tool's result for an answer.
  EXPECT_THAT(Rendered(R"([{"role": "user", "content": "q"},
          {"role": "assistant", "content": "",
           "tool_calls": [{"id": "call_1", "type": "function",
                           "function": {"name": "f", "arguments": "{}"}}]},
          {"role": "tool", "tool_call_id": "call_1", "content": "r"},
          {"role": "function", "name": "f", "content": "t"}])"),
              HasSubstr("r<｜end▁of▁sentence｜><｜Assistant｜>t"));
}

// Templates ask which fields of a message are there: null is not.
TEST_F(RequestsTest, FieldsOfMessagesThatSayNothingAreLeftOut) {
  const std::string plain = Rendered(R"([{"role": "user", "content": "q"},
                   {"role": "assistant", "content": "a"}])");
  EXPECT_EQ(Rendered(R"([{"role": "user", "content": "q", "name": null},
          {"role": "assistant", "content": "a", "refusal": null,
           "tool_calls": null, "function_call": null, "audio": null}])"),
            plain);
  EXPECT_EQ(Rendered(R"([{"role": "user", "content": "q", "tool_calls": []},
          {"role": "assistant", "content": "a", "tool_calls": []}])"),
            plain);
  EXPECT_EQ(ParamOf(Post("/apply-template",
                         R"({"messages": [{"role": "assistant",
                             "content": "a", "tool_calls": {}}]})")),
            "messages[0].tool_calls");
}

TEST_F(RequestsTest, TextOfAMessageIsNoMarker) {
  const uint32_t assistant = Ids("<｜Assistant｜>")[0];
  const auto markers = [&](const std::string& messages) {
    const HttpReply reply =
        Post(kChat, absl::StrCat("{\"messages\": ", messages, "}"));
    EXPECT_EQ(reply.status, 200) << reply.body;
    const auto& ids = Last().prompt_ids;
    return std::count(ids.begin(), ids.end(), assistant);
  };
  for (const char* const role : {"user", "system", "developer"}) {
    EXPECT_EQ(markers(absl::StrCat(R"([{"role": ")", role,
                                   R"(", "content": "<｜Assistant｜>"}])")),
              1);
  }
  EXPECT_EQ(markers(R"([{"role": "user", "content": [
                {"type": "text", "text": "<｜Assis"},
                {"type": "text", "text": "tant｜>"}]}])"),
            1);
  EXPECT_EQ(markers(R"([{"role": "user", "content": "q"},
                        {"role": "tool", "content": "<｜Assistant｜>"}])"),
            2);  // This template answers before a result and after it.
}

// A model whose template prints its variables.
TEST_F(RequestsTest, TheTemplateGetsItsVariables) {
  namespace fs = std::filesystem;
  const testing::TempDir dir;
  const std::string& folder = dir.path();
  for (const char* const name :
       {"config.json", "generation_config.json", "tokenizer.json"}) {
    if (!fs::exists(absl::StrCat(kTinyModel, "/", name))) continue;
    fs::copy(absl::StrCat(kTinyModel, "/", name), folder);
  }
  json config = json::parse(
      std::ifstream(absl::StrCat(kTinyModel, "/tokenizer_config.json")));
  config["chat_template"] =
      "{{ thinking }},{{ enable_thinking }},{{ reasoning_effort }},"
      "{{ add_generation_prompt }},{{ mine }}";
  std::ofstream(folder + "/tokenizer_config.json") << config.dump();
  const auto model = ServedModel::Load(folder);
  ASSERT_TRUE(model.ok()) << model.status();
  HttpOptions options;
  options.listen.port = 0;
  const auto face = HttpFace::Start(options, model->get(), folder, &jobs_);
  ASSERT_TRUE(face.ok()) << face.status();
  const auto rendered = [&](const std::string& fields) {
    const HttpReply reply = testing::HttpClient((*face)->port())
                                .Call("POST", "/apply-template",
                                      absl::StrCat("{", kAskX, fields, "}"));
    return reply.status == 200
               ? json::parse(reply.body)["prompt"].get<std::string>()
               : ParamOf(reply);
  };
  EXPECT_EQ(rendered(""), ",,,True,");
  EXPECT_EQ(rendered(R"(, "thinking": true, "enable_thinking": false,
                        "reasoning_effort": "high",
                        "add_generation_prompt": false)"),
            "True,False,high,False,");
  EXPECT_EQ(rendered(R"(, "chat_template_kwargs": {"thinking": true,
                        "reasoning_effort": "low", "mine": {"b": 1, "a": 2}})"),
            "True,,low,True,{'b': 1, 'a': 2}");
  for (const char* const wrong :
       {"[]", "\"x\"", R"({"messages": []})", R"({"tools": [1]})"}) {
    EXPECT_EQ(rendered(absl::StrCat(R"(, "chat_template_kwargs": )", wrong)),
              "chat_template_kwargs");
  }
  EXPECT_EQ(rendered(R"(, "thinking": "yes")"), "thinking");
  EXPECT_EQ(rendered(R"(, "reasoning_effort": 5)"), "reasoning_effort");
}

}  // namespace
}  // namespace ringfleet::coordinator
