// SPDX-License-Identifier: Apache-2.0
// Clients that damage their requests, send them slowly, or take connections:
// the coordinator lives, its memory is bounded, and others are served.
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/integration/hostile_requests.h"
#include "tests/integration/http_fixture.h"
#include "tests/testing/http_crowd.h"
#include "tests/testing/open_files.h"

namespace ringfleet::integration {
namespace {

using testing::HttpClient;
using testing::HttpCrowd;
using testing::HttpReply;
using Clock = std::chrono::steady_clock;

constexpr size_t kHostileAtOnce = 100;
constexpr size_t kRequestsPerGuest = 50;
// A request that does not end has no answer: its client leaves after this time.
constexpr std::chrono::milliseconds kPatience{
    static_cast<int>(1500 * testing::kSlowdown)};
// A tree of JSON has at most this many bytes for each of its text, "[[[[".
constexpr uint64_t kTreeBytes = 64;
constexpr uint64_t kTreesAtOnce = 2;  // Threads that read requests.
// Bytes of a connection's buffers: read, and not parsed.
constexpr uint64_t kConnectionBytes = uint64_t{80} << 10;
// Everything else: jobs, their texts, arenas of threads.
constexpr uint64_t kOtherBytes = uint64_t{64} << 20;

// True: a long run with full counts and a random seed.
class HttpHostileTest : public HttpFleet,
                        public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    http_port_ = testing::FreePort();
    ASSERT_NO_FATAL_FAILURE(
        StartFleet(1, {"--http", "127.0.0.1:" + std::to_string(http_port_)}));
    text_ = Ask();
    ASSERT_NE(text_, "");
    begin_bytes_ = Bytes();
    const char* const given = std::getenv("RINGFLEET_SOAK_SEED");
    const unsigned seed = !GetParam()        ? 43
                          : given != nullptr ? std::atoi(given)
                                             : std::random_device{}();
    std::cout << "seed " << seed << "\n";
    random_.seed(seed);
  }
  void TearDown() override {
    if (HasFatalFailure()) return;
    EXPECT_EQ(Ask(), text_);
    ExpectNoJobs();
    coordinator_->Signal(SIGTERM);
    EXPECT_EQ(coordinator_->Wait(30), 0) << coordinator_->errors();
  }

  // Asks as a guest does. Returns the text; "" without a good answer.
  std::string Ask() {
    const HttpReply reply = Post(kCompletions, {{"prompt", "def f("},
                                                {"max_tokens", 4},
                                                {"temperature", 0},
                                                {"ignore_eos", true}});
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.status == 200 ? json::parse(reply.body)["choices"][0]["text"]
                               : json("");
  }
  uint64_t Bytes() const {
    return testing::StatusBytes(coordinator_->pid(), "VmRSS");
  }
  // Sanitizers keep freed memory (256 MiB), and have some for each byte.
  void ExpectBoundedMemory(size_t connections) {
    const uint64_t most = begin_bytes_ +
                          kTreesAtOnce * kTreeBytes * kMostHostileBytes +
                          kHostileAtOnce * kMostHostileBytes +
                          connections * kConnectionBytes + kOtherBytes;
    EXPECT_LE(Bytes(),
              testing::kSanitized ? 3 * most + (uint64_t{256} << 20) : most);
  }

  // Checks the responses of one connection, as far as they have come. Returns
  // the number of whole ones.
  static size_t CheckResponses(absl::string_view received,
                               const std::string& request) {
    const auto context = [&] {
      return ::testing::Message()
             << received.substr(0, 500) << "\nto " << request.substr(0, 1000);
    };
    size_t whole = 0;
    while (true) {
      const size_t head_end = received.find("\r\n\r\n");
      if (head_end == absl::string_view::npos) return whole;
      const std::string head(received.substr(0, head_end + 2));
      EXPECT_TRUE(head.starts_with("HTTP/1.1 ")) << context();
      const int status = std::atoi(head.c_str() + 9);
      EXPECT_TRUE((status >= 100 && status < 500) || status == 503)
          << context();
      const size_t length = head.find("\r\nContent-Length: ");
      size_t bytes = head_end + 4;
      if (length != std::string::npos) {
        const size_t size =
            std::strtoul(head.c_str() + length + 18, nullptr, 10);
        if (received.size() < bytes + size) return whole;
        if (head.find("application/json") != std::string::npos) {
          EXPECT_TRUE(json::accept(received.substr(bytes, size))) << context();
        }
        bytes += size;
      } else if (status != 100) {  // Chunks.
        const size_t end = received.find("\r\n0\r\n\r\n", bytes);
        if (end == absl::string_view::npos) return whole;
        bytes = end + 7;
      }
      received.remove_prefix(bytes);
      if (HasFailure()) return whole;
      whole += status == 100 ? 0 : 1;
    }
  }

  std::mt19937_64 random_;
  std::string text_;
  uint64_t begin_bytes_ = 0;
  const testing::RaisedOpenFiles open_files_;
};

TEST_P(HttpHostileTest, DamagedRequestsHurtNobodyElse) {
  size_t requests = GetParam() ? 100'000 : 1'000;  // Fewer if time is over.
  const char* const minutes = std::getenv("RINGFLEET_SOAK_MINUTES");
  const auto over =
      GetParam() && minutes != nullptr
          ? Clock::now() + std::chrono::seconds(60 * std::atoi(minutes))
          : Clock::time_point::max();
  struct Hostile {
    std::string request;
    size_t sent = 0;
    size_t seen = 0;   // Of the response.
    size_t piece = 0;  // Sent at a time.
    Clock::time_point leaves_at;
  };
  HttpCrowd crowd(http_port_);
  std::map<size_t, Hostile> hostile;
  size_t begun = 0, answered = 0;
  while (begun < requests || !hostile.empty()) {
    ASSERT_TRUE(coordinator_->Running()) << coordinator_->errors();
    if (Clock::now() > over) requests = begun;
    while (begun < requests && hostile.size() < kHostileAtOnce) {
      Hostile one;
      one.request = HostileRequest(random_);
      one.piece =
          random_() % 4 == 0 ? 1 + one.request.size() / 50 : one.request.size();
      one.leaves_at = Clock::now() + kPatience;
      hostile[crowd.Connect()] = std::move(one);
      if (++begun % kRequestsPerGuest == 0) {
        EXPECT_EQ(Ask(), text_);
        ExpectBoundedMemory(kHostileAtOnce);
      }
    }
    crowd.Poll(5);
    for (auto it = hostile.begin(); it != hostile.end();) {
      auto& [client, one] = *it;
      if (one.sent < one.request.size()) {
        crowd.Send(client,
                   absl::string_view(one.request).substr(one.sent, one.piece));
        one.sent += one.piece;
      }
      const bool ended = crowd.ended(client);
      const bool waits = !ended && Clock::now() < one.leaves_at;
      if (waits && one.seen == crowd.received(client).size()) {
        ++it;
        continue;
      }
      one.seen = crowd.received(client).size();
      const size_t whole = CheckResponses(crowd.received(client), one.request);
      if (waits && whole == 0) {
        ++it;
        continue;
      }
      answered += whole > 0 ? 1 : 0;
      crowd.Leave(client, /*reset=*/random_() % 2 == 0);
      it = hostile.erase(it);
    }
    ASSERT_FALSE(HasFailure());
  }
  std::cout << requests << " requests, " << answered << " answered; "
            << (begin_bytes_ >> 10) << " KiB before, " << (Bytes() >> 10)
            << " KiB after\n";
  EXPECT_GT(answered, requests / 4);
}

// Some say nothing, some send a head or a body byte by byte.
TEST_P(HttpHostileTest, SlowConnectionsKeepNobodyOut) {
  const size_t connections = GetParam() ? 10'000 : 1'000;
  if (!open_files_.Allows(connections + 100)) {
    GTEST_SKIP() << "needs a limit of open files above " << connections;
  }
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: "
      "application/json\r\nContent-Length: 9000\r\nX-Long: " +
      std::string(8000, 'x') + "\r\n\r\n";
  const std::string request = head + std::string(8000, ' ');
  const size_t begins[] = {0, 60, head.size() + 9};  // Bytes sent at once.
  HttpCrowd crowd(http_port_);
  std::vector<size_t> clients;
  for (size_t i = 0; i < connections; ++i) {
    clients.push_back(crowd.Connect(request.substr(0, begins[i % 3])));
    if (i % 200 != 0) continue;
    crowd.Poll(0);
    EXPECT_EQ(Ask(), text_);
  }
  const auto least = Clock::now() + std::chrono::seconds(GetParam() ? 60 : 0);
  size_t sent = 0;
  EXPECT_TRUE(WaitUntil(120, [&] {
    if (++sent < 6000) {
      for (size_t i = 0; i < clients.size(); ++i) {
        if (i % 3 == 0) continue;
        crowd.Send(clients[i], request.substr(begins[i % 3] + sent, 1));
      }
    }
    crowd.Poll(100);
    EXPECT_EQ(Ask(), text_);
    ExpectBoundedMemory(connections);
    // A third of them has no head in time.
    return HasFailure() || (Clock::now() > least &&
                            crowd.open() <= connections - connections / 3);
  }));
  if (GetParam()) return;  // Many were sent away for others.
  EXPECT_TRUE(crowd.received(clients[1]).starts_with("HTTP/1.1 408 "))
      << crowd.received(clients[1]);
}

INSTANTIATE_TEST_SUITE_P(Corpus, HttpHostileTest, ::testing::Values(false),
                         [](const auto&) { return "Short"; });
INSTANTIATE_TEST_SUITE_P(Soak, HttpHostileTest, ::testing::Values(true),
                         [](const auto&) { return "Long"; });

}  // namespace
}  // namespace ringfleet::integration
