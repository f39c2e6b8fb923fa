// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/expert_balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/random_layout.h"

namespace ringfleet::coordinator {
namespace {

using cluster::ExpertLayout;
using cluster::PlacementPolicy;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ExpertFacts Facts(int experts, int num_coordinates, int slots, int layers = 2) {
  ExpertFacts facts;
  for (int i = 0; i < layers; ++i) facts.layers.push_back(1 + i);
  facts.num_layers = layers + 2;
  facts.num_experts = experts;
  facts.num_groups = 4;
  facts.num_coordinates = num_coordinates;
  facts.expert_bytes = 1000;
  facts.coordinate_replicas =
      *DealReplicas(slots, experts, num_coordinates, {});
  return facts;
}

// Zipf-distributed tokens of a step, in an order of their own.
std::vector<double> Skewed(int experts, double sum, uint64_t seed) {
  std::vector<double> tokens(experts);
  for (int i = 0; i < experts; ++i) tokens[i] = std::pow(i + 1.0, -1.2);
  const double all = std::accumulate(tokens.begin(), tokens.end(), 0.0);
  for (double& count : tokens) count *= sum / all;
  std::mt19937_64 random(seed);
  std::shuffle(tokens.begin(), tokens.end(), random);
  return tokens;
}

std::vector<double> Costs(const std::vector<double>& tokens) {
  std::vector<double> costs;
  for (const double count : tokens) costs.push_back(ExpectedCost(count));
  return costs;
}

TEST(ExpertBalanceTest, SlotsAreDealtOutEvenlyOrByMemory) {
  EXPECT_THAT(*DealReplicas(40, 32, 2, {}), ElementsAre(20, 20));
  EXPECT_THAT(*DealReplicas(40, 32, 3, {}), ElementsAre(13, 13, 14));
  EXPECT_THAT(*DealReplicas(40, 32, 2, {48.0, 16.0}), ElementsAre(30, 10));
  EXPECT_THAT(std::string(DealReplicas(31, 32, 2, {}).status().message()),
              HasSubstr("expert slots 31, want 32 (one for each) to 64"));
  EXPECT_FALSE(DealReplicas(65, 32, 2, {}).ok());
}

TEST(ExpertBalanceTest, FewTokensCostWhatReadingTakes) {
  EXPECT_EQ(ExpectedCost(0), 0);
  EXPECT_EQ(ExpectedCost(300), 300);
  // In one step of a hundred it is read.
  EXPECT_THAT(ExpectedCost(0.01), DoubleNear(0.16, 0.001));
  EXPECT_LE(ExpectedCost(3), 16);
}

TEST(ExpertBalanceTest, StartsWithoutCopiesOrWithThoseOfEqualLoads) {
  EXPECT_EQ(*InitialLayout(Facts(8, 2, 8)), ExpertLayout(4, 8, 2));
  const ExpertLayout layout = *InitialLayout(Facts(8, 2, 12));
  EXPECT_EQ(layout.Held(1, 0).size() + layout.Held(1, 1).size(), 12u);
  EXPECT_EQ(layout.Held(1, 0).size(), 6u);
  // Not in layers without experts, or in the one that nobody counts.
  EXPECT_THAT(layout.Held(0, 0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(layout.Held(3, 0), ElementsAre(0, 1, 2, 3));
}

TEST(ExpertBalanceTest, ProposalsBalanceAndSayWhatTheyTake) {
  for (const int num_coordinates : {2, 3, 4, 8}) {
    const ExpertFacts facts = Facts(32, num_coordinates, 40);
    const ExpertLayout now = *InitialLayout(facts);
    const std::vector<std::vector<double>> tokens = {Skewed(32, 32 * 8, 1),
                                                     Skewed(32, 512 * 8, 2)};
    const auto proposal =
        ProposeLayout(facts, now, tokens, PlacementPolicy::kGlobal, 1);
    ASSERT_TRUE(proposal.ok()) << proposal.status();
    uint64_t loaded = 0;
    for (size_t row = 0; row < tokens.size(); ++row) {
      const BalancedLayer& layer = proposal->layers[row];
      EXPECT_EQ(layer.layer, facts.layers[row]);
      const std::vector<double> costs = Costs(tokens[row]);
      EXPECT_EQ(layer.before, Imbalance(now, layer.layer, costs));
      EXPECT_EQ(layer.after, Imbalance(proposal->layout, layer.layer, costs));
      EXPECT_LE(layer.after, layer.before);
      int lacking = 0;
      for (int coordinate = 0; coordinate < num_coordinates; ++coordinate) {
        for (const int32_t e : proposal->layout.Held(layer.layer, coordinate)) {
          if (now.IndexOf(layer.layer, coordinate, e) < 0) ++lacking;
        }
      }
      EXPECT_EQ(layer.loaded, lacking);
      loaded += lacking;
    }
    // Forty slots leave little choice to eight coordinates.
    EXPECT_LE(proposal->after, num_coordinates <= 4 ? 1.1 : 1.2)
        << num_coordinates << " coordinates";
    EXPECT_EQ(proposal->bytes_to_load, loaded * facts.expert_bytes);

    // From there nothing is left to gain.
    const auto again = ProposeLayout(facts, proposal->layout, tokens,
                                     PlacementPolicy::kGlobal, 1);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->layout, proposal->layout);
    EXPECT_EQ(again->bytes_to_load, 0u);
  }
}

// The algorithm numbers slots as it likes; where they are now decides which
// coordinate gets which.
TEST(ExpertBalanceTest, ALittleChangeMovesLittle) {
  const ExpertFacts facts = Facts(64, 4, 64, /*layers=*/1);
  std::vector<std::vector<double>> tokens = {Skewed(64, 4096, 5)};
  const ExpertLayout balanced =
      ProposeLayout(facts, ExpertLayout(3, 64, 4), tokens,
                    PlacementPolicy::kGlobal, 1)
          ->layout;
  for (double& count : tokens[0]) count *= 2;
  // Shares are equal: not one expert moves, wherever coordinates are renamed.
  ExpertLayout renamed = balanced;
  std::vector<std::vector<int32_t>> held;
  for (const int coordinate : {2, 0, 3, 1}) {
    const auto experts = balanced.Held(1, coordinate);
    held.emplace_back(experts.begin(), experts.end());
  }
  ASSERT_TRUE(renamed.SetLayer(1, held).ok());
  const auto proposal =
      ProposeLayout(facts, renamed, tokens, PlacementPolicy::kGlobal, 1);
  EXPECT_EQ(proposal->bytes_to_load, 0u);
}

TEST(ExpertBalanceTest, WithoutTokensNothingMoves) {
  const ExpertFacts facts = Facts(8, 2, 12);
  const ExpertLayout now = *InitialLayout(facts);
  const auto proposal = ProposeLayout(
      facts, now,
      std::vector<std::vector<double>>(2, std::vector<double>(8, 0.0)),
      PlacementPolicy::kGlobal, 1);
  ASSERT_TRUE(proposal.ok());
  EXPECT_EQ(proposal->layout, now);
  EXPECT_EQ(proposal->before, 1);
}

TEST(ExpertBalanceTest, HierarchicalKeepsGroupsOnTheirNodes) {
  ExpertFacts facts = Facts(16, 4, 24, /*layers=*/1);
  const auto proposal =
      ProposeLayout(facts, *InitialLayout(facts), {Skewed(16, 999, 3)},
                    PlacementPolicy::kHierarchical, /*nodes=*/2);
  ASSERT_TRUE(proposal.ok()) << proposal.status();
  for (int expert = 0; expert < 16; ++expert) {
    const auto coordinates = proposal->layout.Coordinates(1, expert);
    for (const int32_t coordinate : coordinates) {
      EXPECT_EQ(coordinate / 2, coordinates[0] / 2) << "expert " << expert;
    }
  }
  EXPECT_EQ(ProposeLayout(facts, *InitialLayout(facts), {Skewed(16, 999, 3)},
                          PlacementPolicy::kHierarchical, /*nodes=*/3)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ExpertBalanceTest, FasterCoordinatesHaveMoreToDo) {
  ExpertFacts facts = Facts(32, 2, 48, /*layers=*/1);
  facts.coordinate_speeds = {30, 10};
  const ExpertLayout start = *InitialLayout(facts);
  const std::vector<std::vector<double>> tokens = {Skewed(32, 4096, 9)};
  const auto proposal =
      ProposeLayout(facts, start, tokens, PlacementPolicy::kGlobal, 1);
  ASSERT_TRUE(proposal.ok()) << proposal.status();
  EXPECT_LE(proposal->after, 1.05);
  EXPECT_EQ(proposal->layout.slowness()[1], 3);
}

TEST(ExpertBalanceTest, CoordinatesWithMoreSlotsHoldMore) {
  ExpertFacts facts = Facts(32, 2, 32, /*layers=*/1);
  facts.coordinate_replicas = {24, 16};
  const ExpertLayout start = *InitialLayout(facts);
  EXPECT_EQ(start.Held(1, 0).size(), 24u);
  const auto proposal = ProposeLayout(facts, start, {Skewed(32, 4096, 9)},
                                      PlacementPolicy::kGlobal, 1);
  ASSERT_TRUE(proposal.ok()) << proposal.status();
  EXPECT_LE(proposal->layout.Held(1, 0).size(), 24u);
  EXPECT_LE(proposal->layout.Held(1, 1).size(), 16u);
  EXPECT_LE(proposal->after, 1.1);
}

}  // namespace
}  // namespace ringfleet::coordinator
