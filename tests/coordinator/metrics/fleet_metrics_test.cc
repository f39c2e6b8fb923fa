// SPDX-License-Identifier: Apache-2.0
#include "coordinator/metrics/fleet_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/metrics/histogram.h"
#include "coordinator/metrics/metrics_text.h"
#include "tests/testing/exposition.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::ElementsAre;
using testing::Exposition;
using testing::ExpositionReader;
using ::testing::IsEmpty;

TEST(HistogramTest, ABoundBelongsToItsClass) {
  v1::Histogram histogram = MakeHistogram({0.5, 2});
  for (const double value : {0.0, 0.5, 0.6, 2.0, 3.0}) Count(value, &histogram);
  EXPECT_THAT(histogram.counts(), ElementsAre(2, 2, 1));
  EXPECT_EQ(CountOf(histogram), 5u);
  EXPECT_DOUBLE_EQ(histogram.sum(), 6.1);
}

TEST(MetricsTextTest, WritesEachKind) {
  MetricsText out;
  out.Only({"a_total", MetricKind::kCounter, "Some a."}, {}, uint64_t{7});
  out.Begin({"b", MetricKind::kGauge, "Some b."});
  out.Add({{"x", "1"}, {"y", ""}}, 0.1);
  out.Add({{"x", "q\"\\\n"}}, 1e-7);
  v1::Histogram histogram = MakeHistogram({0.25, 1});
  Count(0.2, &histogram);
  Count(9, &histogram);
  out.Only({"c", MetricKind::kHistogram, "Some c."}, {{"x", "1"}}, histogram);
  EXPECT_EQ(out.Take(),
            "# HELP a_total Some a.\n"
            "# TYPE a_total counter\n"
            "a_total 7\n"
            "# HELP b Some b.\n"
            "# TYPE b gauge\n"
            "b{x=\"1\",y=\"\"} 0.1\n"
            "b{x=\"q\\\"\\\\\\n\"} 1e-07\n"
            "# HELP c Some c.\n"
            "# TYPE c histogram\n"
            "c_bucket{x=\"1\",le=\"0.25\"} 1\n"
            "c_bucket{x=\"1\",le=\"1\"} 1\n"
            "c_bucket{x=\"1\",le=\"+Inf\"} 2\n"
            "c_sum{x=\"1\"} 9.2\n"
            "c_count{x=\"1\"} 2\n");
}

TEST(FleetMetricsTest, TellAllOfAState) {
  v1::ClusterState state;
  state.set_state(v1::FLEET_STATE_READY);
  state.set_world_size(3);
  state.mutable_build()->set_version("1.2");
  state.mutable_cache()->set_blocks_total(8);
  state.mutable_cache()->set_blocks_used(2);
  state.mutable_cache()->set_preemptions(4);
  v1::FleetFigures& figures = *state.mutable_figures();
  figures.set_ready_epochs(2);
  figures.set_generated_tokens(11);
  figures.set_sent_bytes_per_token(1536);
  for (v1::Histogram* const histogram :
       {figures.mutable_step_seconds(), figures.mutable_step_sequences(),
        figures.mutable_step_tokens()}) {
    *histogram = MakeHistogram({1, 2});
    Count(1.5, histogram);
  }
  v1::ExpertImbalance* const layer = figures.add_experts();
  layer->set_layer(3);
  layer->set_expert(2.5);
  for (const int rank : {0, 2}) {
    v1::WorkerState* const worker = state.add_workers();
    worker->set_rank(rank);
    worker->set_host(absl::StrCat("host \"", rank, "\""));
    worker->set_state(rank == 0 ? v1::MEMBER_STATE_READY
                                : v1::MEMBER_STATE_LOST);
    worker->set_heartbeat_age_ms(1500);
    worker->mutable_figures()->set_memory_bytes(1 << 20);
    v1::CollectiveTotal* const total =
        worker->mutable_figures()->add_collectives();
    total->set_operation(v1::COLLECTIVE_OPERATION_ALL_REDUCE);
    total->set_algorithm(v1::COLLECTIVE_ALGORITHM_ONE_SHOT);
    total->set_count(5);
    total->set_duration_ns(250'000'000);
    total->set_sent_bytes(77);
  }
  v1::RoundTrip* const trip =
      state.mutable_workers(0)->mutable_figures()->add_round_trips();
  trip->set_peer(2);
  trip->set_ns(80'000);

  MetricsText out;
  AppendFleetMetrics(state, "m", &out);
  const Exposition read = ExpositionReader::Read(out.Take());
  EXPECT_THAT(read.problems, IsEmpty());
  const std::string host = R"(rank="0",host="host \"0\"")";
  const std::string kind = R"(,operation="all_reduce",algorithm="one_shot"})";
  const std::pair<std::string, double> samples[] = {
      {"vllm:kv_cache_usage_perc{model_name=\"m\"}", 0.25},
      {"vllm:num_preemptions_total{model_name=\"m\"}", 4},
      {"vllm:cache_config_info{block_size=\"128\",num_gpu_blocks=\"8\"}", 1},
      {"vllm:iteration_tokens_total_count{model_name=\"m\"}", 1},
      {"ringfleet_ready", 1},
      {"ringfleet_epochs_total{outcome=\"ready\"}", 2},
      {"ringfleet_tokens_total{kind=\"generated\"}", 11},
      {"ringfleet_sent_bytes_per_token", 1536},
      {"ringfleet_step_duration_seconds_sum", 1.5},
      {"ringfleet_busiest_expert_ratio{layer=\"3\"}", 2.5},
      {"ringfleet_worker_up{" + host + "}", 1},
      {"ringfleet_worker_up{rank=\"1\",host=\"\"}", 0},
      {"ringfleet_worker_up{rank=\"2\",host=\"host \\\"2\\\"\"}", 0},
      {"ringfleet_worker_heartbeat_age_seconds{" + host + "}", 1.5},
      {"ringfleet_worker_resident_memory_bytes{" + host + "}", 1 << 20},
      {"ringfleet_collectives_total{" + host + kind, 5},
      {"ringfleet_collective_seconds_total{" + host + kind, 0.25},
      {"ringfleet_collective_sent_bytes_total{" + host + kind, 77},
      {"ringfleet_peer_rtt_seconds{" + host + ",peer=\"2\"}", 8e-5},
  };
  for (const auto& [name, value] : samples) {
    const auto found = read.samples.find(name);
    ASSERT_NE(found, read.samples.end()) << name;
    EXPECT_DOUBLE_EQ(found->second, value) << name;
  }
  // One coordinate of experts is no imbalance.
  EXPECT_EQ(read.samples.count("ringfleet_expert_imbalance_ratio{layer=\"3\"}"),
            0u);
}

TEST(FleetMetricsTest, LabelsAreTheNamesOfTheCommandLine) {
  EXPECT_EQ(LabelOf(v1::COLLECTIVE_OPERATION_ALL_GATHER_MATMUL),
            "all_gather_matmul");
  EXPECT_EQ(LabelOf(v1::COLLECTIVE_ALGORITHM_TWO_SHOT), "two_shot");
  EXPECT_EQ(LabelOf(static_cast<v1::CollectiveAlgorithm>(99)), "unknown");
}

}  // namespace
}  // namespace ringfleet::coordinator
