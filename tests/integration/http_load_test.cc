// SPDX-License-Identifier: Apache-2.0
// Streaming clients that come and go beside idle connections: every request
// ends, and the coordinator is afterwards as it was before.
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/integration/http_fixture.h"
#include "tests/testing/http_crowd.h"
#include "tests/testing/open_files.h"

namespace ringfleet::integration {
namespace {

using testing::HttpCrowd;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr size_t kClients = 256;
constexpr size_t kIdle = 1000;
constexpr size_t kMostTokens = 64;  // Of a request.
// The server takes as many connections as half of its descriptors.
constexpr rlim_t kOpenFilesWanted = 2 * (kClients + kIdle) + 500;
// Growth of memory that is no leak: pages that malloc's arenas hold in pieces.
constexpr uint64_t kArenaBytes = uint64_t{8} << 20;
// A smaller leak for each request would take a month to fill 1 GiB at one
// request a second.
constexpr uint64_t kLeakBytes = 400;

size_t Count(const std::string& text, const std::string& of) {
  size_t count = 0;
  for (size_t at = text.find(of); at != std::string::npos;
       at = text.find(of, at + of.size())) {
    ++count;
  }
  return count;
}

// True: for the minutes of a long run, with a random seed.
class HttpLoadTest : public HttpFleet,
                     public ::testing::WithParamInterface<bool> {
 protected:
  // A stream as its client reads it. `ends_` counts the ends of all.
  struct Request {
    size_t tokens = 0;
    size_t leaves_after = SIZE_MAX;  // Events.
    Clock::time_point leaves_at = Clock::time_point::max();
  };
  struct Ends {
    size_t whole = 0, left = 0, failed = 0;
    size_t all() const { return whole + left + failed; }
  };

  void StartServer() {
    http_port_ = testing::FreePort();
    ASSERT_NO_FATAL_FAILURE(
        StartFleet(1, {"--http", "127.0.0.1:" + std::to_string(http_port_),
                       "--parallel", "32"}));
    // A first request starts all that waits for one.
    ASSERT_EQ(Post(kCompletions, {{"prompt", "x"}, {"max_tokens", 2}}).status,
              200);
  }

  static Seconds LoadTime() {
    if (!GetParam()) return Seconds(testing::kSanitized ? 8 : 20);
    const char* const minutes = std::getenv("RINGFLEET_SOAK_MINUTES");
    return Seconds(60 * std::atof(minutes == nullptr ? "5" : minutes));
  }
  void Seed() {
    const char* const given = std::getenv("RINGFLEET_SOAK_SEED");
    const unsigned seed = !GetParam()        ? 43
                          : given != nullptr ? std::atoi(given)
                                             : std::random_device{}();
    std::cout << "seed " << seed << "\n";
    RecordProperty("seed", std::to_string(seed));
    random_.seed(seed);
  }

  // Begins a request on an open connection, or on a new one.
  void Begin(HttpCrowd& crowd, const size_t* client = nullptr) {
    Request request;
    request.tokens = 1 + random_() % kMostTokens;
    const size_t fate = random_() % 20;
    if (fate < 3) request.leaves_after = 1 + random_() % request.tokens;
    if (fate == 3 || fate == 4) {
      request.leaves_at =
          Clock::now() + std::chrono::milliseconds(random_() % 200);
    }
    const json body = {{"prompt", "x" + std::to_string(random_() % 1000)},
                       {"max_tokens", request.tokens},
                       {"temperature", 1},
                       {"ignore_eos", true},
                       {"stream", true},
                       {"stream_options", {{"include_usage", true}}}};
    const std::string text = body.dump();
    const std::string bytes =
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: "
        "application/json\r\nContent-Length: " +
        std::to_string(text.size()) + "\r\n\r\n" + text;
    if (client == nullptr) {
      requests_[crowd.Connect(bytes)] = request;
    } else {
      crowd.Send(*client, bytes);
      requests_[*client] = request;
    }
    ++begun_;
  }

  // Looks at what a client has received. Returns whether its request has ended.
  bool Look(HttpCrowd& crowd, size_t client) {
    const Request request = requests_.at(client);
    std::string& text = crowd.received(client);
    const bool whole = text.ends_with("\r\n0\r\n\r\n");
    if (whole && text.find("data: [DONE]") != std::string::npos &&
        text.find("\"completion_tokens\":" + std::to_string(request.tokens)) !=
            std::string::npos) {
      ++ends_.whole;
      text.clear();
      requests_.erase(client);
      if (random_() % 2 == 0 && !over()) {
        Begin(crowd, &client);
        return false;
      }
      crowd.Leave(client);
      return true;
    }
    const bool refused = text.find("\r\n\r\n") != std::string::npos &&
                         !text.starts_with("HTTP/1.1 200 ");
    if (whole || refused || crowd.ended(client)) {
      ++ends_.failed;
      ADD_FAILURE() << "a request ended with " << text;
    } else if (Count(text, "\ndata: {") >= request.leaves_after ||
               Clock::now() >= request.leaves_at) {
      ++ends_.left;
    } else {
      return false;
    }
    requests_.erase(client);
    crowd.Leave(client, /*reset=*/random_() % 2 == 0);
    return true;
  }

  bool over() const { return Clock::now() >= over_; }

  std::mt19937_64 random_;
  Clock::time_point over_;
  std::map<size_t, Request> requests_;  // By connection.
  size_t begun_ = 0;
  Ends ends_;
  const testing::RaisedOpenFiles open_files_;
};

TEST_P(HttpLoadTest, EndsEveryRequestAndLeavesNothing) {
  if (!open_files_.Allows(kOpenFilesWanted)) {
    GTEST_SKIP() << "needs a limit of open files above " << kOpenFilesWanted;
  }
  Seed();
  ASSERT_NO_FATAL_FAILURE(StartServer());
  const pid_t pid = coordinator_->pid();
  const int descriptors = testing::DescriptorCount(pid);
  const int threads = testing::ThreadCount(pid);

  HttpCrowd crowd(http_port_);
  auto idle = std::make_unique<HttpCrowd>(http_port_);
  for (size_t i = 0; i < kIdle; ++i) idle->Connect();
  const auto begin = Clock::now();
  const auto duration = std::chrono::duration_cast<Clock::duration>(LoadTime());
  over_ = begin + duration;
  // Some request ends within this time, however slow the machine is.
  const auto patience = std::chrono::duration_cast<Clock::duration>(
      Seconds(60 * testing::kSlowdown));
  auto stuck_at = begin + patience;
  size_t seen_ends = 0;
  std::set<int> thread_counts;
  uint64_t warm_bytes = 0, last_bytes = 0;
  size_t warm_ends = 0;
  auto next_look = begin;
  while (!over() || !requests_.empty()) {
    ASSERT_TRUE(coordinator_->Running()) << coordinator_->errors();
    if (ends_.all() != seen_ends) stuck_at = Clock::now() + patience;
    seen_ends = ends_.all();
    ASSERT_TRUE(Clock::now() < stuck_at)
        << requests_.size() << " requests have not ended";
    while (!over() && requests_.size() < kClients) Begin(crowd);
    for (const size_t client : crowd.Poll(10)) {
      if (crowd.has(client)) Look(crowd, client);
    }
    std::vector<size_t> late;
    for (const auto& [client, request] : requests_) {
      if (Clock::now() >= request.leaves_at) late.push_back(client);
    }
    for (const size_t client : late) Look(crowd, client);
    for (const size_t client : idle->Poll(0)) {
      // A connection may be idle for two minutes.
      EXPECT_GT(Clock::now() - begin, std::chrono::seconds(100));
      idle->Leave(client);
      idle->Connect();
    }
    if (Clock::now() < next_look) continue;
    next_look += std::chrono::seconds(1);
    thread_counts.insert(testing::ThreadCount(pid));
    last_bytes = testing::StatusBytes(pid, "VmRSS");
    if (Clock::now() - begin < duration / 3) {
      warm_bytes = last_bytes;
      warm_ends = ends_.all();
    }
  }
  EXPECT_EQ(idle->open(), kIdle);
  std::cout << begun_ << " requests: " << ends_.whole << " whole, "
            << ends_.left << " left, " << ends_.failed << " failed; "
            << (last_bytes >> 10) << " KiB, after a third of the time "
            << (warm_bytes >> 10) << " KiB\n";
  EXPECT_EQ(ends_.all(), begun_);
  EXPECT_GT(ends_.whole, kClients / 4);
  EXPECT_GT(ends_.left, 0u);
  // gRPC's timers take up to two more for a moment.
  EXPECT_LE(*thread_counts.rbegin(), threads + 2);
  // AddressSanitizer keeps freed memory, and finds leaks itself.
  if (!testing::kSanitized) {
    EXPECT_LE(last_bytes, warm_bytes + kArenaBytes +
                              kLeakBytes * (ends_.all() - warm_ends));
  }
  ExpectNoJobs();
  const json status = Status();
  EXPECT_EQ(status["state"], "ready");
  EXPECT_EQ(status["cache"]["blocks_used"], 0) << status;
  idle.reset();
  // gRPC keeps a descriptor for each thread that has waited for it.
  const int most_descriptors = descriptors + threads;
  EXPECT_TRUE(WaitUntil(
      30, [&] { return testing::DescriptorCount(pid) <= most_descriptors; }))
      << testing::DescriptorCount(pid) << ", want at most " << most_descriptors;
  coordinator_->Signal(SIGTERM);
  EXPECT_EQ(coordinator_->Wait(30), 0) << coordinator_->errors();
}

INSTANTIATE_TEST_SUITE_P(Load, HttpLoadTest, ::testing::Values(false),
                         [](const auto&) { return "Short"; });
INSTANTIATE_TEST_SUITE_P(Soak, HttpLoadTest, ::testing::Values(true),
                         [](const auto&) { return "Long"; });

}  // namespace
}  // namespace ringfleet::integration
