// SPDX-License-Identifier: Apache-2.0
#include "worker/execution/expert_statistics.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/rank_world.h"

namespace ringfleet::worker {
namespace {

using nlohmann::json;
using Counts = std::vector<std::vector<uint64_t>>;

v1::StatisticsResponse Read(ExpertStatistics& statistics, bool reset = false) {
  v1::StatisticsResponse response;
  statistics.Read(reset, &response);
  return response;
}

TEST(ExpertStatisticsTest, TotalsAreExactAndSkipDenseLayers) {
  ExpertStatistics statistics;
  for (uint64_t step = 1; step <= 3; ++step) {
    Counts counts = {{}, {step, 0, 5}, {}, {0, 10 * step, 1}};
    std::vector<uint64_t> dropped = {0, 0, 0, 2 * step};
    statistics.AddStep(counts, dropped);
    EXPECT_EQ(dropped, std::vector<uint64_t>(4));
    EXPECT_EQ(counts, (Counts{{}, {0, 0, 0}, {}, {0, 0, 0}}));
  }
  const v1::StatisticsResponse response = Read(statistics);
  EXPECT_EQ(response.steps(), 3u);
  ASSERT_EQ(response.layers_size(), 2);
  EXPECT_EQ(response.layers(0).layer(), 1u);
  EXPECT_EQ(response.layers(1).layer(), 3u);
  const auto tokens = [&](int i) {
    return std::vector<uint64_t>(response.layers(i).tokens().begin(),
                                 response.layers(i).tokens().end());
  };
  EXPECT_EQ(tokens(0), (std::vector<uint64_t>{6, 0, 15}));
  EXPECT_EQ(tokens(1), (std::vector<uint64_t>{0, 60, 3}));
  EXPECT_EQ(response.layers(0).dropped(), 0u);
  EXPECT_EQ(response.layers(1).dropped(), 12u);
}

TEST(ExpertStatisticsTest, ResetZeroesTotalsAfterReadingAndKeepsAverages) {
  ExpertStatistics statistics;
  Counts counts = {{4, 8}};
  std::vector<uint64_t> dropped = {3};
  statistics.AddStep(counts, dropped);
  EXPECT_EQ(Read(statistics, /*reset=*/true).layers(0).tokens(1), 8u);
  const v1::StatisticsResponse after = Read(statistics);
  EXPECT_EQ(after.layers(0).tokens(1), 0u);
  EXPECT_EQ(after.layers(0).dropped(), 0u);
  EXPECT_EQ(after.layers(0).average(1), 8.0f);
  EXPECT_EQ(after.steps(), 1u);
}

TEST(ExpertStatisticsTest, AverageFollowsAChangeWithinSomeHundredSteps) {
  ExpertStatistics statistics;
  const auto add = [&](uint64_t tokens, int steps) {
    for (int i = 0; i < steps; ++i) {
      Counts counts = {{tokens}};
      std::vector<uint64_t> dropped = {0};
      statistics.AddStep(counts, dropped);
    }
    return Read(statistics).layers(0).average(0);
  };
  EXPECT_FLOAT_EQ(add(10, 1), 10);
  EXPECT_FLOAT_EQ(add(20, 1), 10.1f);
  EXPECT_NEAR(add(20, 100), 16.4, 0.1);  // 20 - 9.9 * 0.99^100
  EXPECT_NEAR(add(20, 1000), 20, 0.01);
}

TEST(ExpertStatisticsTest, NothingToReportBeforeTheFirstStep) {
  ExpertStatistics statistics;
  EXPECT_EQ(Read(statistics, true).layers_size(), 0);
}

class GoldenExpertCountsTest : public ::testing::TestWithParam<std::string> {};

// Every rank counts all experts, also those it does not hold.
TEST_P(GoldenExpertCountsTest, LastPromptRoutesAsInTheGoldens) {
  const std::string folder = RINGFLEET_TEST_MODELS "/" + GetParam();
  std::ifstream file(folder + "/golden.json");
  const json golden = json::parse(file);
  const auto ids =
      golden["cases"].back()["prompt_ids"].get<std::vector<uint32_t>>();
  const json& expected = golden["expert_counts_last_prompt"];
  for (const cluster::MeshShape mesh :
       {cluster::MeshShape{1, 1, 1}, cluster::MeshShape{1, 1, 2},
        cluster::MeshShape{1, 3, 1}}) {
    ringfleet::testing::RankWorld world(folder, {.mesh = mesh});
    v1::ScoreOptions options;
    options.set_mtp(world.spec().num_nextn_predict_layers > 0);
    ringfleet::testing::ScorePrompt(world, ids, options, 128);
    for (int rank = 0; rank < world.size(); ++rank) {
      const Counts& counts = world.ExpertCounts(rank);
      ASSERT_EQ(counts.size(),
                static_cast<size_t>(world.spec().num_hidden_layers));
      size_t layers = 0;
      for (size_t layer = 0; layer < counts.size(); ++layer) {
        if (counts[layer].empty()) continue;
        ++layers;
        EXPECT_EQ(counts[layer],
                  expected[std::to_string(layer)].get<std::vector<uint64_t>>())
            << "layer " << layer << " rank " << rank;
      }
      EXPECT_EQ(layers, expected.size());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenExpertCountsTest,
                         ::testing::Values("tiny-v2", "tiny-v2-lite",
                                           "tiny-v3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace ringfleet::worker
