// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/launch/status_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "coordinator/metrics/histogram.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A state after `steps` steps of 4 sequences.
v1::ClusterState StateAfter(int steps) {
  v1::ClusterState state;
  state.set_name("f\x1b[2J");
  state.set_state(v1::FLEET_STATE_READY);
  state.set_pid(7);
  state.set_requests_running(3);
  state.set_requests_waiting(2);
  v1::FleetFigures& figures = *state.mutable_figures();
  *figures.mutable_step_sequences() = MakeHistogram({1, 8});
  for (int i = 0; i < steps; ++i) Count(4, figures.mutable_step_sequences());
  figures.set_prompt_tokens(100 * steps);
  figures.set_generated_tokens(4 * steps);
  figures.set_sent_bytes_per_token(2048);
  for (const int layer : {1, 2}) {
    v1::ExpertImbalance* const of = figures.add_experts();
    of->set_layer(layer);
    of->set_expert(2 * layer);
    of->set_coordinate(1.75 - 0.25 * layer);
  }
  v1::WorkerState* const worker = state.add_workers();
  worker->set_host("alpha");
  worker->set_address("alpha:50052");
  worker->set_state(v1::MEMBER_STATE_READY);
  worker->set_heartbeat_age_ms(1234);
  worker->mutable_figures()->set_memory_bytes(3 << 20);
  for (const uint32_t peer : {1, 2}) {
    v1::RoundTrip* const trip = worker->mutable_figures()->add_round_trips();
    trip->set_peer(peer);
    trip->set_ns(50'000 * peer);
  }
  return state;
}

TEST(StatusWatchTest, RatesAreDifferencesOverTime) {
  const auto rates =
      RatesBetween(StateAfter(10), StateAfter(30), absl::Seconds(4));
  ASSERT_TRUE(rates.has_value());
  EXPECT_DOUBLE_EQ(rates->prompt_tokens, 500);
  EXPECT_DOUBLE_EQ(rates->generated_tokens, 20);
  EXPECT_DOUBLE_EQ(rates->steps, 5);
  EXPECT_DOUBLE_EQ(rates->step_sequences, 4);
  const auto idle =
      RatesBetween(StateAfter(30), StateAfter(30), absl::Seconds(4));
  ASSERT_TRUE(idle.has_value());
  EXPECT_EQ(idle->generated_tokens, 0);
  EXPECT_EQ(idle->step_sequences, 0);
  // Another coordinator has begun to count again.
  EXPECT_FALSE(RatesBetween(StateAfter(30), StateAfter(10), absl::Seconds(4)));
  v1::ClusterState other = StateAfter(40);
  other.set_pid(8);
  EXPECT_FALSE(RatesBetween(StateAfter(30), other, absl::Seconds(4)));
}

TEST(StatusWatchTest, TheViewShowsWhatAnOperatorAsksFirst) {
  EXPECT_THAT(
      WatchText(StateAfter(10),
                RatesBetween(StateAfter(10), StateAfter(30), absl::Seconds(4))),
      AllOf(HasSubstr("requests 3 running, 2 waiting\n"),
            HasSubstr("tokens/s 20.0 generated, 500.0 of prompts; 5.0 steps/s "
                      "of 4.0 sequences\n"),
            HasSubstr("imbalance: busiest expert 4.00 (layer 2), busiest "
                      "coordinate 1.50 (layer 1) times the mean\n"),
            HasSubstr("workers send 2.0 KiB for each token\n"),
            HasSubstr("alpha:50052"), HasSubstr("100 us to 2"),
            HasSubstr("1.2s ago\n"), HasSubstr("3.0")));
  EXPECT_THAT(WatchText(StateAfter(10), std::nullopt),
              HasSubstr("tokens 40 generated, 1000 of prompts so far\n"));
}

TEST(StatusWatchTest, TextOfHostsMovesNoCursor) {
  EXPECT_THAT(WatchText(StateAfter(1), std::nullopt),
              AllOf(HasSubstr("fleet f [2J: ready"), Not(HasSubstr("\x1b"))));
}

TEST(StatusWatchTest, TheDocumentIsThatOfStatusWithRates) {
  Json document = WatchJson(StateAfter(10), std::nullopt);
  EXPECT_TRUE(document["rates"].is_null());
  EXPECT_EQ(document["tokens"]["generated"], 40);
  EXPECT_EQ(document["steps"]["count"], 10);
  EXPECT_EQ(document["imbalance"]["2"]["coordinate"], 1.25);
  EXPECT_EQ(document["workers"][0]["round_trips_s"]["2"], 1e-4);
  document = WatchJson(StateAfter(10), StatusRates{.generated_tokens = 2.5});
  EXPECT_EQ(document["rates"]["generated_tokens_per_second"], 2.5);
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
