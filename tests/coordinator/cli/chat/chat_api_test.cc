// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/chat/chat_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::testing::HasSubstr;

std::string Parsed(const char* url) {
  const auto parsed = ParseApiUrl(url);
  if (!parsed.ok()) return std::string(parsed.status().message());
  return absl::StrCat(parsed->tls ? "tls " : "", parsed->host, " ",
                      parsed->port, " ", parsed->authority, " ",
                      parsed->target);
}

TEST(ChatApiTest, UrlsNameAServer) {
  EXPECT_EQ(Parsed("http://127.0.0.1:8080"),
            "127.0.0.1 8080 127.0.0.1:8080 /v1/chat/completions");
  EXPECT_EQ(Parsed("https://host/v1/"),
            "tls host 443 host /v1/chat/completions");
  EXPECT_EQ(Parsed("http://[::1]:80/api"),
            "::1 80 [::1]:80 /api/v1/chat/completions");
  EXPECT_EQ(Parsed("http://[::1]"), "::1 80 [::1] /v1/chat/completions");
  EXPECT_THAT(Parsed("host:80"), HasSubstr("want http:// or https://"));
  EXPECT_THAT(Parsed("http://:80"), HasSubstr("want a host"));
  EXPECT_THAT(Parsed("http://h:99999"), HasSubstr("want a host"));
}

TEST(ChatApiTest, BodiesHaveWhatWasSet) {
  v1::GenerateRequest request;
  v1::Conversation* const conversation =
      request.mutable_prompt()->mutable_conversation();
  conversation->add_messages()->set_role("user");
  conversation->mutable_messages(0)->set_content("q");
  request.set_max_tokens(-1);
  EXPECT_EQ(ChatBodyOf(request, ""),
            R"({"messages":[{"role":"user","content":"q"}],"stream":true,)"
            R"("stream_options":{"include_usage":true}})");
  request.set_temperature(0.6F);
  request.set_seed(7);
  request.set_max_tokens(5);
  request.add_stop("x");
  request.add_stop_token_ids(9);
  request.set_ignore_eos(true);
  v1::LogitBias* const bias = request.add_logit_bias();
  bias->set_id(3);
  bias->set_bias(-1.5F);
  conversation->set_template_kwargs(R"({"thinking": true})");
  const Json body = Json::parse(ChatBodyOf(request, "M"));
  EXPECT_EQ(body["model"], "M");
  EXPECT_EQ(body["temperature"].dump(), "0.6");
  EXPECT_EQ(body["seed"], 7);
  EXPECT_EQ(body["max_tokens"], 5);
  EXPECT_EQ(body["stop"], Json::array({"x"}));
  EXPECT_EQ(body["stop_token_ids"], Json::array({9}));
  EXPECT_EQ(body["ignore_eos"], true);
  EXPECT_EQ(body["logit_bias"]["3"], -1.5);
  EXPECT_EQ(body["chat_template_kwargs"]["thinking"], true);
  EXPECT_FALSE(body.contains("top_k"));
}

TEST(ChatApiTest, ErrorsKeepTheServersWords) {
  const absl::Status bad =
      ApiErrorOf(400, R"({"error": {"message": "no such field"}})");
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(bad.message(), "server: status 400: no such field");
  EXPECT_EQ(ApiErrorOf(503, "later").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ApiErrorOf(503, "later").message(), "server: status 503: later");
}

TEST(ChatEventsTest, AnswersComeInAnyPieces) {
  const std::string stream =
      ": waiting\n\n"
      R"(data: {"choices":[{"delta":{"role":"assistant","content":null}}]})"
      "\n\n"
      R"(data: {"choices":[{"delta":{"reasoning_content":"r"}}]})"
      "\r\n\r\n"
      R"(data: {"choices":[{"delta":{"reasoning":"s"}}]})"
      "\n\n"
      R"(data:{"choices":[{"delta":{"content":"a\nb"},"finish_reason":null}]})"
      "\n\n"
      R"(data: {"choices":[{"delta":{},"finish_reason":"length"}]})"
      "\n\n"
      R"(data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":3}})"
      "\n\ndata: [DONE]\n\n";
  for (const size_t size : {size_t{1}, size_t{7}, stream.size()}) {
    Generated generated;
    std::string told;
    const OnPiece on_piece = [&](const AnswerPiece& piece, bool) {
      absl::StrAppend(&told, "[", piece.reasoning, "|", piece.text, "]");
      return absl::OkStatus();
    };
    ChatEvents events(on_piece, &generated);
    for (size_t at = 0; at < stream.size(); at += size) {
      EXPECT_FALSE(events.done());
      EXPECT_TRUE(events.Add(stream.substr(at, size)).ok());
      if (events.done()) break;
    }
    EXPECT_TRUE(events.done());
    EXPECT_EQ(told, "[r|][s|][|a\nb]");
    EXPECT_EQ(generated.text, "a\nb");
    EXPECT_EQ(generated.reasoning, "rs");
    EXPECT_EQ(generated.finished.reason(), v1::FINISH_REASON_LENGTH);
    EXPECT_EQ(generated.finished.timings().prompt_n(), 4u);
    EXPECT_EQ(generated.finished.timings().predicted_n(), 3u);
  }
}

TEST(ChatEventsTest, ALateErrorIsToldAndWrongEventsEndIt) {
  Generated generated;
  const OnPiece on_piece = [](const AnswerPiece&, bool) {
    return absl::OkStatus();
  };
  ChatEvents events(on_piece, &generated);
  EXPECT_THAT(
      std::string(events.Add("data: {\"error\":{\"message\":\"it ends\"}}\n\n")
                      .message()),
      HasSubstr("it ends"));
  EXPECT_EQ(events.Add("data: [\n\n").code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(events.Add("data: {\"choices\":[5]}\n\n").ok());
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
