// SPDX-License-Identifier: Apache-2.0
// Figures of workers on their way to /metrics and to `ringfleet status`.
#include <signal.h>

#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/integration/fleet_fixture.h"
#include "tests/testing/exposition.h"
#include "tests/testing/http_client.h"

namespace ringfleet::integration {
namespace {

using testing::Exposition;
using testing::ExpositionReader;
using testing::HttpClient;

class FleetMetricsTest : public HandFleet {
 protected:
  // Returns the sum of all samples that begin so.
  static double Sum(const Exposition& read, const std::string& begin) {
    double sum = 0;
    for (auto it = read.samples.lower_bound(begin);
         it != read.samples.end() && it->first.starts_with(begin); ++it) {
      sum += it->second;
    }
    return sum;
  }
};

TEST_F(FleetMetricsTest, WorkersTellTheirFiguresAndStatusGoesOnWithoutAFleet) {
  const int http_port = testing::FreePort();
  ASSERT_NO_FATAL_FAILURE(
      StartFleet(2, {"--http", "127.0.0.1:" + std::to_string(http_port)}));
  const std::unique_ptr<Process> watch =
      StartCli({"status", "--watch", "0.2", "--json", "--cluster", cluster()});
  HttpClient client(http_port);
  ASSERT_EQ(client
                .Call("POST", "/v1/completions",
                      R"({"prompt": "def f", "max_tokens": 8,
                          "ignore_eos": true})")
                .status,
            200);
  Exposition read;
  const auto rank = [](int number, const char* more) {
    return absl::StrCat("{rank=\"", number, "\"", more);
  };
  ASSERT_TRUE(WaitUntil(30, [&] {
    read = ExpositionReader::Read(
        HttpClient(http_port).Call("GET", "/metrics").body);
    return Sum(read, "ringfleet_peer_rtt_seconds" + rank(0, "")) > 0 &&
           Sum(read, "ringfleet_peer_rtt_seconds" + rank(1, "")) > 0 &&
           Sum(read, "ringfleet_collectives_total" + rank(0, "")) > 0 &&
           Sum(read, "ringfleet_collectives_total" + rank(1, "")) > 0 &&
           Sum(read, "ringfleet_busiest_expert_ratio") > 0;
  }));
  EXPECT_THAT(read.problems, ::testing::IsEmpty());
  EXPECT_EQ(Sum(read, "ringfleet_worker_up"), 2);
  for (const char* const begin :
       {"ringfleet_collective_seconds_total", "ringfleet_collective_sent_bytes",
        "ringfleet_sent_bytes_total", "ringfleet_sent_bytes_per_token",
        "ringfleet_memory_read_bytes_total", "ringfleet_cache_blocks",
        "ringfleet_worker_resident_memory_bytes{rank=\"1\"",
        "ringfleet_worker_weight_bytes{rank=\"0\""}) {
    EXPECT_GT(Sum(read, begin), 0) << begin;
  }
  EXPECT_EQ(Sum(read, "ringfleet_epochs_total{outcome=\"ready\""), 1);
  EXPECT_EQ(Sum(read, "ringfleet_tokens_total{kind=\"generated\""), 8);
  EXPECT_GE(Sum(read, "ringfleet_step_duration_seconds_count"), 8);
  EXPECT_EQ(Sum(read, "vllm:request_decode_time_seconds_count"), 1);

  coordinator_->Signal(SIGKILL);
  ASSERT_TRUE(WaitUntil(30, [&] {
    return watch->output().find("\"error\"") != std::string::npos;
  })) << watch->errors();
  EXPECT_TRUE(watch->Running());
  watch->Signal(SIGINT);
  const Finished watched = Finish(*watch);
  EXPECT_EQ(watched.code, 0) << watched.errors;
  EXPECT_EQ(watched.errors, "");
  std::istringstream lines(watched.output);
  int states = 0, rates = 0;
  std::string line;
  while (std::getline(lines, line)) {
    const json document = json::parse(line);
    if (document.contains("error")) {
      EXPECT_EQ(document["error"]["code"], "UNAVAILABLE");
      continue;
    }
    EXPECT_EQ(document["state"], "ready");
    EXPECT_EQ(document["workers"].size(), 2u);
    ++states;
    rates += document["rates"].is_null() ? 0 : 1;
  }
  EXPECT_GE(states, 2);
  EXPECT_GE(rates, 1);
}

}  // namespace
}  // namespace ringfleet::integration
