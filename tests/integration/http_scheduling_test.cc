// SPDX-License-Identifier: Apache-2.0
// Situations in which other engines failed their users, on a real fleet.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/http_fixture.h"

namespace ringfleet::integration {
namespace {

using testing::HttpClient;
using testing::HttpReply;

class HttpSchedulingTest : public HttpFleet {
 protected:
  static json Completion(int first, int prompt_n, int max_tokens) {
    json request = {{"prompt", json::array()},
                    {"max_tokens", max_tokens},
                    {"temperature", 0},
                    {"ignore_eos", true}};
    for (int i = 0; i < prompt_n; ++i) {
      request["prompt"].push_back(first + i % 90);
    }
    return request;
  }

  json Answer(const json& request) {
    const HttpReply reply = Post(kCompletions, request);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json::parse(reply.body);
  }
};

TEST_F(HttpSchedulingTest, OutputsThatFillTheCacheAllEnd) {
  ASSERT_NO_FATAL_FAILURE(
      Serve(/*parallel=*/4, {"-c", "384", "--cache-positions", "768"}));
  std::vector<json> answers(4);
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back(
        [&, i] { answers[i] = Answer(Completion(100 * (i + 1), 40, 300)); });
  }
  for (std::thread& client : clients) client.join();
  for (const json& answer : answers) {
    EXPECT_EQ(answer["usage"]["completion_tokens"], 300);
  }
  // A prompt beyond the cache fails, and others go on.
  EXPECT_EQ(Post(kCompletions, Completion(3, 385, 1)).status, 400);
  EXPECT_EQ(Answer(Completion(3, 380, 2))["usage"]["completion_tokens"], 2);
  EndServe();
}

TEST_F(HttpSchedulingTest, ANumberInThePromptCostsOnlyWhatIsBehindIt) {
  ASSERT_NO_FATAL_FAILURE(Serve());
  json request = Completion(3, 200, 2);
  Answer(request);
  request["prompt"][50] = 500;
  EXPECT_EQ(Answer(request)["usage"]["prompt_tokens_details"]["cached_tokens"],
            50);
  EndServe();
}

TEST_F(HttpSchedulingTest, RequestsThatGaveUpDelayNobody) {
  ASSERT_NO_FATAL_FAILURE(Serve());
  std::vector<std::unique_ptr<HttpClient>> clients;
  json late = Completion(3, 20, 900);
  late["timeout"] = 0.2;
  for (int i = 0; i < 30; ++i) {
    clients.push_back(std::make_unique<HttpClient>(http_port_));
    clients.back()->SendRequest("POST", kCompletions, late.dump());
  }
  EXPECT_EQ(Answer(Completion(300, 20, 2))["usage"]["completion_tokens"], 2);
  for (const auto& client : clients) EXPECT_NE(client->Read().status, 0);
  ExpectNoJobs();
  EndServe();
}

TEST_F(HttpSchedulingTest, SamplesOfAPromptEvaluateItOnce) {
  ASSERT_NO_FATAL_FAILURE(Serve(/*parallel=*/4));
  json request = Completion(3, 300, 8);
  const json alone = Answer(request)["choices"][0]["text"];
  request["cache_salt"] = "samples";
  request["n"] = 4;
  const json answer = Answer(request);
  ASSERT_EQ(answer["choices"].size(), 4u);
  for (const json& choice : answer["choices"]) {
    EXPECT_EQ(choice["text"], alone);
  }
  EXPECT_EQ(Metric("vllm:prefix_cache_hits_total"), 3 * 299);
  EndServe();
}

TEST_F(HttpSchedulingTest, ABatchLeavesItsPlaceAndEnds) {
  ASSERT_NO_FATAL_FAILURE(Serve(/*parallel=*/2, {"--batch-step-ms", "1000"}));
  std::vector<std::thread> clients;
  std::vector<json> answers(4);  // Two wait, so that no slot becomes free.
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&, i] {
      json request = Completion(100 * (i + 1), 40, 500);
      request["priority"] = 1;
      answers[i] = Answer(request);
    });
  }
  EXPECT_TRUE(
      WaitUntil(30, [&] { return Metric("vllm:num_requests_running") == 2; }));
  EXPECT_EQ(Answer(Completion(3, 20, 2))["usage"]["completion_tokens"], 2);
  EXPECT_GE(Metric("vllm:num_preemptions_total"), 1);
  for (std::thread& client : clients) client.join();
  for (const json& answer : answers) {
    EXPECT_EQ(answer["usage"]["completion_tokens"], 500);
  }
  EndServe();
}

}  // namespace
}  // namespace ringfleet::integration
