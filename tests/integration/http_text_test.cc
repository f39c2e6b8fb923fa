// SPDX-License-Identifier: Apache-2.0
// One request has one text over HTTP: whole and as a stream, alone and beside
// 31 others, on any number of workers.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/http_fixture.h"

namespace ringfleet::integration {
namespace {

using testing::EventsOf;
using testing::HttpClient;
using testing::HttpReply;

constexpr int kJobs = 32;
constexpr int kSubjectTokens = 24;
// Differences of sums in float32 are far below this margin of a winner.
constexpr double kClearMargin = 1e-3;

struct Subject {
  std::string path;
  json body;
};

std::vector<Subject> Subjects() {
  const auto completion = [](json more) {
    more["prompt"] = "def add(a, b):";
    more["logprobs"] = 3;
    return Subject{kCompletions, std::move(more)};
  };
  std::vector<Subject> subjects = {
      completion({{"temperature", 0}}),
      completion({{"temperature", 0.9}, {"seed", 5}, {"top_p", 0.95}}),
      completion({{"temperature", 1.1},
                  {"seed", 6},
                  {"repetition_penalty", 1.2},
                  {"frequency_penalty", 0.5},
                  {"logit_bias", {{"40", 1.5}}}}),
      {kChat,
       {{"messages", {{{"role", "user"}, {"content", "import os"}}}},
        {"temperature", 0.8},
        {"seed", 7},
        {"top_k", 40},
        {"min_p", 0.02},
        {"logprobs", true},
        {"top_logprobs", 3}}}};
  for (Subject& subject : subjects) {
    subject.body["max_tokens"] = kSubjectTokens;
    subject.body["ignore_eos"] = true;
  }
  return subjects;
}

// The tokens of a choice, each with its probability and those of the likeliest
// ones, as the response has them.
struct Drawn {
  std::string text;
  json tokens = json::array();
  json logprobs = json::array();
  json top = json::array();

  bool operator==(const Drawn&) const = default;

  // Adds a choice of a whole body or of one event.
  void Add(const json& choice) {
    const bool chat = !choice.contains("text");
    const json& said = choice.contains("delta") ? choice["delta"]
                       : chat                   ? choice["message"]
                                                : choice;
    const json piece = said.value(chat ? "content" : "text", json());
    if (piece.is_string()) text += piece.get<std::string>();
    const json& list = choice["logprobs"];
    if (list.is_null()) return;
    if (!chat) {
      for (size_t i = 0; i < list["tokens"].size(); ++i) {
        tokens.push_back(list["tokens"][i]);
        logprobs.push_back(list["token_logprobs"][i]);
        top.push_back(list["top_logprobs"][i]);
      }
      return;
    }
    for (const json& token : list["content"]) {
      tokens.push_back(token["bytes"]);
      logprobs.push_back(token["logprob"]);
      top.push_back(token["top_logprobs"]);
    }
  }
};

std::ostream& operator<<(std::ostream& out, const Drawn& drawn) {
  return out << drawn.text << "\n" << drawn.logprobs;
}

Drawn DrawnOf(const HttpReply& reply) {
  Drawn drawn;
  EXPECT_EQ(reply.status, 200) << reply.body;
  if (reply.status != 200) return drawn;
  if (reply.body.starts_with("{")) {
    drawn.Add(json::parse(reply.body)["choices"][0]);
    return drawn;
  }
  for (const std::string& event : EventsOf(reply.body)) {
    if (event == "[DONE]") return drawn;
    const json parsed = json::parse(event);
    for (const json& choice : parsed["choices"]) drawn.Add(choice);
  }
  ADD_FAILURE() << "the stream has no end: " << reply.body;
  return drawn;
}

// Returns the number of first tokens, drawn at temperature 0, that won by more
// than kClearMargin.
size_t ClearWinners(const Drawn& greedy) {
  for (size_t i = 0; i < greedy.top.size(); ++i) {
    std::vector<double> values;
    for (const json& value : greedy.top[i]) values.push_back(value);
    std::sort(values.rbegin(), values.rend());
    if (values.size() < 2 || values[0] - values[1] <= kClearMargin) return i;
  }
  return greedy.tokens.size();
}

class HttpTextTest : public HttpFleet {
 protected:
  static json Streamed(json body) {
    body["stream"] = true;
    return body;
  }

  // Sends each subject twice, whole and as a stream, while others run. Returns
  // what is drawn in this order.
  std::vector<Drawn> DrawBesideOthers(const std::vector<Subject>& subjects) {
    std::vector<std::unique_ptr<HttpClient>> others, clients;
    for (size_t i = 0; i < kJobs - 2 * subjects.size(); ++i) {
      const json body = {{"prompt", "other " + std::to_string(i)},
                         {"max_tokens", 900},
                         {"temperature", 1},
                         {"seed", i},
                         {"ignore_eos", true},
                         {"stream", true}};
      others.push_back(std::make_unique<HttpClient>(http_port_));
      others.back()->SendRequest("POST", kCompletions, body.dump());
    }
    for (const auto& other : others) {
      EXPECT_TRUE(other->ReadUntil("data: "));
    }
    for (const Subject& subject : subjects) {
      for (const json& body : {subject.body, Streamed(subject.body)}) {
        clients.push_back(std::make_unique<HttpClient>(http_port_));
        clients.back()->SendRequest("POST", subject.path, body.dump());
      }
    }
    std::vector<Drawn> drawn;
    for (const auto& client : clients) drawn.push_back(DrawnOf(client->Read()));
    EXPECT_EQ(Metric("vllm:num_requests_running"),
              static_cast<int>(others.size()));
    return drawn;
  }

  // Returns what each subject draws, which is the same in all ways of asking.
  std::vector<Drawn> DrawInAllWays() {
    const std::vector<Subject> subjects = Subjects();
    std::vector<Drawn> alone;
    for (const Subject& subject : subjects) {
      alone.push_back(DrawnOf(Post(subject.path, subject.body)));
      EXPECT_EQ(alone.back().tokens.size(), size_t{kSubjectTokens});
      EXPECT_EQ(DrawnOf(Post(subject.path, Streamed(subject.body))),
                alone.back());
    }
    const std::vector<Drawn> beside = DrawBesideOthers(subjects);
    for (size_t i = 0; i < beside.size(); ++i) {
      EXPECT_EQ(beside[i], alone[i / 2]) << "subject " << i / 2;
    }
    return alone;
  }
};

TEST_F(HttpTextTest, IsTheSameInAllWaysOfAskingAndOnAnyNumberOfWorkers) {
  std::vector<Drawn> one;
  for (int world = 1; world <= 3; ++world) {
    SCOPED_TRACE(::testing::Message() << world << " workers");
    ASSERT_NO_FATAL_FAILURE(
        Serve(kJobs, {"--local", std::to_string(world), "--wire", "f32"}));
    const std::vector<Drawn> drawn = DrawInAllWays();
    EndServe();
    if (world == 1) {
      one = drawn;
      continue;
    }
    const size_t clear = ClearWinners(one[0]);
    EXPECT_GE(clear, size_t{kSubjectTokens} / 2);
    const auto first = [clear](const Drawn& of) {
      return json(of.tokens.begin(), of.tokens.begin() + clear);
    };
    EXPECT_EQ(first(drawn[0]), first(one[0]));
    for (size_t i = 1; i < one.size(); ++i) {
      EXPECT_EQ(drawn[i].tokens, one[i].tokens) << i;
    }
  }
}

}  // namespace
}  // namespace ringfleet::integration
