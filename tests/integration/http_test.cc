// SPDX-License-Identifier: Apache-2.0
// OpenAI's API over a real fleet: `ringfleet serve`, and a coordinator with
// workers that were started by hand.
#include <signal.h>

#include <filesystem>

#include "tests/integration/http_fixture.h"

namespace ringfleet::integration {
namespace {

using testing::EventsOf;
using testing::HttpClient;
using testing::HttpReply;
using ::testing::Not;

class HttpTest : public HttpFleet {
 protected:
  // Returns clients of long streams, of which `running` have a slot.
  std::vector<std::unique_ptr<HttpClient>> Occupy(int clients, int running) {
    std::vector<std::unique_ptr<HttpClient>> streams;
    for (int i = 0; i < clients; ++i) {
      streams.push_back(std::make_unique<HttpClient>(http_port_));
      streams.back()->SendRequest(
          "POST", kCompletions,
          R"({"prompt": "x", "max_tokens": 900, "ignore_eos": true,
              "stream": true})");
    }
    EXPECT_TRUE(WaitUntil(
        30, [&] { return Metric("vllm:num_requests_running") == running; }));
    return streams;
  }

  static std::string TextOf(const HttpReply& reply) {
    std::string text;
    for (const std::string& event : EventsOf(reply.body)) {
      if (event == "[DONE]") break;
      const json parsed = json::parse(event);
      for (const json& choice : parsed["choices"]) {
        text += choice["text"].get<std::string>();
      }
    }
    return text;
  }
};

TEST_F(HttpTest, ServeAnswersLikeGenerateUntilItIsEnded) {
  ASSERT_NO_FATAL_FAILURE(Serve());
  const json generated =
      Cli({"generate", "--model", Model(), "--dtype", "f32", "-p", "def main(",
           "-n", "12", "--temp", "0.8", "--seed", "7", "--json"})
          .document();
  json request = {{"model", "tiny-v3"}, {"prompt", "def main("},
                  {"max_tokens", 12},   {"temperature", 0.8},
                  {"top_p", 0.95},      {"seed", 7},
                  {"logprobs", 0}};
  const HttpReply whole = Post(kCompletions, request);
  ASSERT_EQ(whole.status, 200) << whole.body;
  const json body = json::parse(whole.body);
  EXPECT_EQ(body["choices"][0]["text"], generated["text"]);
  EXPECT_EQ(body["choices"][0]["finish_reason"], generated["finish_reason"]);
  EXPECT_EQ(body["usage"]["completion_tokens"], generated["ids"].size());
  EXPECT_EQ(body["usage"]["prompt_tokens"], generated["prompt_ids"].size());
  request["stream"] = true;
  const HttpReply stream = Post(kCompletions, request);
  EXPECT_EQ(TextOf(stream), generated["text"]);
  EXPECT_EQ(EventsOf(stream.body).back(), "[DONE]");
  const HttpReply chat =
      Post("/v1/chat/completions",
           {{"messages", {{{"role", "user"}, {"content", "hello"}}}},
            {"max_tokens", 3},
            {"n", 2}});
  ASSERT_EQ(chat.status, 200) << chat.body;
  EXPECT_EQ(json::parse(chat.body)["choices"].size(), 2u);
  EXPECT_EQ(Metric("vllm:num_requests_running"), 0);
  EndServe();
}

TEST_F(HttpTest, ServeSaysWhyBatchesCannotBeStored) {
  const auto serve = [this](Arguments more) {
    const int port = testing::FreePort();
    Arguments arguments = {"serve", "--model", Model(), "--port",
                           std::to_string(port)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    serve_ = StartCli(std::move(arguments));
    EXPECT_TRUE(WaitUntil(30, [this] {
      return serve_->output().ends_with("\n") || !serve_->Running();
    })) << serve_->errors();
    return port;
  };
  const auto is_told = [this](const std::string& why) {
    const std::string warning = "warning: batches cannot be stored: ";
    EXPECT_TRUE(WaitUntil(30, [&] {
      const std::string errors = serve_->errors();
      return errors.find(warning) != std::string::npos &&
             errors.find(why) != std::string::npos;
    })) << serve_->errors();
    EndServe();
  };
  testing::WriteFile(File("state"), "The default folder cannot be made.");
  serve({});
  is_told(File("state"));
  const int port = serve({"--state-dir", File("store")});
  testing::WriteFile(File("other"), "someone's");
  std::filesystem::rename(File("other"), File("store/state.db"));
  const std::string body =
      "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
      "--b\r\nContent-Disposition: form-data; name=\"file\"; "
      "filename=\"a.jsonl\"\r\n\r\n{}\r\n--b--\r\n";
  HttpClient client(port);
  client.Send(
      "POST /v1/files HTTP/1.1\r\nHost: test\r\n"
      "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_EQ(client.Read().status, 500);
  is_told("another file took its place");
}

TEST_F(HttpTest, ACachedPromptHasTheProbabilitiesOfAColdOne) {
  ASSERT_NO_FATAL_FAILURE(Serve(/*parallel=*/8));
  json request = {{"prompt", json::array()},
                  {"max_tokens", 8},
                  {"temperature", 0},
                  {"logprobs", 2}};
  for (int i = 0; i < 300; ++i) request["prompt"].push_back(3 + i * 7 % 900);
  const auto ask = [&](const char* what, int cached) {
    SCOPED_TRACE(what);
    const HttpReply reply = Post(kCompletions, request);
    EXPECT_EQ(reply.status, 200) << reply.body;
    const json body = json::parse(reply.body);
    EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], cached);
    return body["choices"];
  };
  const json cold = ask("cold", 0);
  EXPECT_EQ(ask("cached", 299), cold);
  {
    const auto others = Occupy(/*clients=*/6, /*running=*/6);
    EXPECT_EQ(ask("beside others", 299), cold);
  }
  ExpectNoJobs();
  request["cache_salt"] = "mine";
  EXPECT_EQ(ask("with a salt of its own", 0), cold);
  request["echo"] = true;  // Needs the hidden state of each position.
  const json echoed = ask("echoed", 0);
  EXPECT_EQ(ask("echoed again", 0), echoed);
  EXPECT_GE(Metric("vllm:prefix_cache_hits_total"), 2 * 299);
  EndServe();
}

TEST_F(HttpTest, AClientThatLeavesFreesItsSlot) {
  ASSERT_NO_FATAL_FAILURE(Serve());
  Occupy(/*clients=*/4, /*running=*/2);  // Two wait. All leave at once.
  ExpectNoJobs();
  EXPECT_EQ(Post(kCompletions, {{"prompt", "x"}, {"max_tokens", 1}}).status,
            200);
  serve_->Signal(SIGINT);
  EXPECT_EQ(serve_->Wait(30), 0) << serve_->errors();
}

TEST_F(HttpTest, ACoordinatorWithKeysEndsAnswersInTime) {
  testing::WriteFile(File("keys"), "alice: alice-secret\n");
  const int port = testing::FreePort();
  ASSERT_NO_FATAL_FAILURE(
      StartFleet(1, {"--http", "127.0.0.1:" + std::to_string(port), "--alias",
                     "tiny", "--api-key-file", File("keys"), "--drain", "1h"}));
  http_port_ = port;
  EXPECT_EQ(Post(kCompletions, {{"prompt", "x"}}).status, 401);
  const std::string key = "Authorization: Bearer alice-secret\r\n";
  HttpClient client(port);
  client.SendRequest("POST", kCompletions,
                     R"({"model": "tiny", "prompt": "x", "max_tokens": 300,
                         "ignore_eos": true, "stream": true})",
                     key);
  ASSERT_TRUE(client.ReadUntil("data: "));
  coordinator_->Signal(SIGTERM);
  ASSERT_TRUE(WaitUntil(30, [&] {
    return HttpClient(port).Call("GET", "/ready").status != 200;
  }));
  const HttpReply reply = client.Read();
  EXPECT_TRUE(reply.whole);
  EXPECT_EQ(EventsOf(reply.body).back(), "[DONE]");
  EXPECT_EQ(coordinator_->Wait(30), 0);
  EXPECT_THAT(coordinator_->errors(), HasSubstr("key=alice prompt="));
  EXPECT_THAT(coordinator_->errors(), Not(HasSubstr("alice-secret")));
}

TEST_F(HttpTest, AnswersThatAreCutShortSayWhy) {
  const int port = testing::FreePort();
  ASSERT_NO_FATAL_FAILURE(StartFleet(
      1, {"--http", "127.0.0.1:" + std::to_string(port), "--drain", "0"}));
  HttpClient client(port);
  client.SendRequest("POST", kCompletions,
                     R"({"prompt": "x", "max_tokens": 1000,
                         "ignore_eos": true, "stream": true})");
  ASSERT_TRUE(client.ReadUntil("data: "));
  coordinator_->Signal(SIGTERM);
  const HttpReply reply = client.Read();
  EXPECT_TRUE(reply.whole);
  EXPECT_THAT(EventsOf(reply.body).back(), HasSubstr("{\"error\":"));
  EXPECT_EQ(coordinator_->Wait(30), 0);
}

}  // namespace
}  // namespace ringfleet::integration
