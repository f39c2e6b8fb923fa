// SPDX-License-Identifier: Apache-2.0
#include "worker/model/expert_dispatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "cluster/model/expert_cost.h"
#include "tests/testing/random_layout.h"

namespace ringfleet::worker {
namespace {

using cluster::ExpertCost;
using cluster::ExpertLayout;
using cluster::kExpertReadTokens;
using testing::RandomizeLayer;

// The coordinate that multiplies each route. Fails unless the coordinate holds
// the expert and finds its replica.
struct Decision {
  std::vector<int> coordinates;  // By route.
  std::vector<double> loads;     // By coordinate.
};

Decision Dispatch(const ExpertLayout& layout, int layer,
                  const std::vector<int32_t>& ids,
                  const std::vector<size_t>& group_ends) {
  ExpertDispatch dispatch;
  dispatch.Assign(layout, layer, ids, group_ends);
  const Decision decision = {
      .coordinates = {dispatch.coordinates().begin(),
                      dispatch.coordinates().end()},
      .loads = {dispatch.loads().begin(), dispatch.loads().end()}};
  std::vector<int32_t> replicas(ids.size());
  for (int coordinate = 0; coordinate < layout.num_coordinates();
       ++coordinate) {
    dispatch.FindReplicas(layout, layer, coordinate, ids, replicas.data());
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(replicas[i], decision.coordinates[i] == coordinate
                                 ? layout.IndexOf(layer, coordinate, ids[i])
                                 : -1);
    }
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_GE(layout.IndexOf(layer, decision.coordinates[i], ids[i]), 0);
  }
  return decision;
}

Decision DispatchEverywhere(const ExpertLayout& layout, int layer,
                            const std::vector<int32_t>& ids) {
  return Dispatch(layout, layer, ids, {ids.size()});
}

// The work of each coordinate by ExpertCost, counted from the routes.
std::vector<double> CountLoads(const ExpertLayout& layout,
                               const std::vector<int32_t>& ids,
                               const std::vector<int>& coordinates) {
  std::vector<std::vector<int64_t>> rows(
      layout.num_coordinates(), std::vector<int64_t>(layout.num_experts()));
  for (size_t i = 0; i < ids.size(); ++i) ++rows[coordinates[i]][ids[i]];
  std::vector<double> loads;
  for (const auto& of_coordinate : rows) {
    int64_t sum = 0;
    for (const int64_t count : of_coordinate) sum += ExpertCost(count);
    loads.push_back(static_cast<double>(sum));
  }
  return loads;
}

TEST(ExpertDispatchTest, EveryRouteHasOneCoordinateWhateverTheLayout) {
  std::mt19937_64 random(17);
  for (int round = 0; round < 300; ++round) {
    const int experts = 1 + static_cast<int>(random() % 40);
    const int num_coordinates = 1 + static_cast<int>(random() % 7);
    ExpertLayout layout(2, experts, num_coordinates);
    RandomizeLayer(random, 1, &layout);
    std::vector<int32_t> ids(random() % 900);
    for (int32_t& id : ids) {
      // Some experts get far more than others.
      id = static_cast<int32_t>(
          std::min(random() % experts, random() % experts));
    }
    const Decision decision = DispatchEverywhere(layout, 1, ids);
    EXPECT_EQ(decision.loads, CountLoads(layout, ids, decision.coordinates));
  }
}

TEST(ExpertDispatchTest, WithoutCopiesTheLayoutDecides) {
  const ExpertLayout layout(1, 4, 2);
  const Decision decision = DispatchEverywhere(layout, 0, {3, 0, 2, 1, 1});
  EXPECT_THAT(decision.coordinates, ::testing::ElementsAre(1, 0, 1, 0, 0));
  EXPECT_THAT(decision.loads, ::testing::ElementsAre(2 * kExpertReadTokens,
                                                     2 * kExpertReadTokens));
}

TEST(ExpertDispatchTest, ByTokenOthersDoNotMatter) {
  constexpr int kExperts = 12;
  constexpr size_t kEach = 3;
  std::mt19937_64 random(23);
  ExpertLayout layout(1, kExperts, 4);
  RandomizeLayer(random, 0, &layout);
  std::vector<int32_t> ids(3000);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % kExperts);
  ExpertDispatch all;
  all.AssignByToken(layout, 0, ids, kEach);
  ExpertDispatch alone;
  std::vector<std::vector<int>> taken(
      kExperts, std::vector<int>(layout.num_coordinates(), 0));
  for (size_t i = 0; i < ids.size(); i += kEach) {
    const absl::Span<const int32_t> token =
        absl::MakeConstSpan(ids).subspan(i, kEach);
    alone.AssignByToken(layout, 0, token, kEach);
    EXPECT_EQ(alone.coordinates(), all.coordinates().subspan(i, kEach));
    for (size_t j = 0; j < kEach; ++j) {
      EXPECT_GE(layout.IndexOf(0, alone.coordinates()[j], token[j]), 0);
      ++taken[token[j]][alone.coordinates()[j]];
    }
  }
  // Each copy serves some of its expert's tokens.
  for (int expert = 0; expert < kExperts; ++expert) {
    for (const int32_t coordinate : layout.Coordinates(0, expert)) {
      EXPECT_GT(taken[expert][coordinate], 0);
    }
  }
  EXPECT_EQ(all.loads(),
            CountLoads(layout, ids,
                       {all.coordinates().begin(), all.coordinates().end()}));
}

TEST(ExpertDispatchTest, AFewTokensStayTogether) {
  ExpertLayout layout(1, 2, 2);
  ASSERT_TRUE(layout.SetLayer(0, {{0, 1}, {1}}).ok());
  // Expert 1 is read once, and not where expert 0 is read.
  const Decision decision =
      DispatchEverywhere(layout, 0, {1, 0, 1, 1, 1, 0, 1, 1});
  EXPECT_THAT(decision.coordinates,
              ::testing::ElementsAre(1, 0, 1, 1, 1, 0, 1, 1));
}

TEST(ExpertDispatchTest, ManyTokensAreSharedEvenly) {
  ExpertLayout layout(1, 2, 2);
  ASSERT_TRUE(layout.SetLayer(0, {{0, 1}, {1}}).ok());
  std::vector<int32_t> ids(100, 0);
  ids.insert(ids.end(), 300, 1);
  EXPECT_THAT(DispatchEverywhere(layout, 0, ids).loads,
              ::testing::ElementsAre(200, 200));
}

// Copies of all experts everywhere: whole experts of a few tokens lie as evenly
// as whole ones can, at most one above the others.
TEST(ExpertDispatchTest, FullCopiesAreEven) {
  std::mt19937_64 random(3);
  for (const int num_coordinates : {2, 3, 5}) {
    const int experts = 32;
    ExpertLayout layout(1, experts, num_coordinates);
    std::vector<int32_t> all(experts);
    std::iota(all.begin(), all.end(), 0);
    ASSERT_TRUE(layout
                    .SetLayer(0, std::vector<std::vector<int32_t>>(
                                     num_coordinates, all))
                    .ok());
    std::vector<int32_t> ids(64);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % experts);
    const auto loads = DispatchEverywhere(layout, 0, ids).loads;
    const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
    EXPECT_LE(*most - *least, kExpertReadTokens);
  }
}

TEST(ExpertDispatchTest, AFasterCoordinateGetsMore) {
  ExpertLayout layout(1, 2, 2);
  ASSERT_TRUE(layout.SetLayer(0, {{0, 1}, {0, 1}}).ok());
  ASSERT_TRUE(layout.SetSpeeds({30.0f, 10.0f}).ok());
  std::vector<int32_t> ids(400, 0);
  ids.insert(ids.end(), 400, 1);
  const Decision decision = DispatchEverywhere(layout, 0, ids);
  EXPECT_NEAR(static_cast<double>(std::count(decision.coordinates.begin(),
                                             decision.coordinates.end(), 0)),
              600, 2);
  EXPECT_NEAR(decision.loads[0], 600, 4);
  EXPECT_NEAR(decision.loads[1], 600, 4);
  // A few tokens stay together where they are done first.
  EXPECT_THAT(DispatchEverywhere(layout, 0, {0, 0, 1}).coordinates,
              ::testing::ElementsAre(0, 0, 0));
}

// Routes beyond `capacity` fair shares of a coordinate are dropped, those of
// the least weight first and among equals the later ones.
TEST(ExpertDispatchTest, CoordinatesTakeNoMoreThanTheirCapacity) {
  const ExpertLayout layout(1, 4, 2);
  const std::vector<int32_t> ids = {0, 1, 0, 1, 0, 2};
  const std::vector<float> weights = {0.5f, 0.2f, 0.2f, 0.9f, 0.2f, 0.1f};
  ExpertDispatch dispatch;
  const auto limited = [&](double capacity) {
    dispatch.Assign(layout, 0, ids, {ids.size()});
    EXPECT_EQ(dispatch.dropped(), 0u);
    dispatch.LimitRoutes(capacity, weights);
    return std::vector<int32_t>(dispatch.coordinates().begin(),
                                dispatch.coordinates().end());
  };
  EXPECT_THAT(limited(2), ::testing::ElementsAre(0, 0, 0, 0, 0, 1));
  EXPECT_EQ(dispatch.dropped(), 0u);
  EXPECT_THAT(limited(1), ::testing::ElementsAre(0, 0, -1, 0, -1, 1));
  EXPECT_EQ(dispatch.dropped(), 2u);
  std::vector<int32_t> replicas(ids.size());
  dispatch.FindReplicas(layout, 0, 0, ids, replicas.data());
  EXPECT_THAT(replicas, ::testing::ElementsAre(0, 1, -1, 1, -1, -1));
  EXPECT_THAT(limited(0.1), ::testing::ElementsAre(-1, -1, -1, 0, -1, 1));
}

// Two groups of one coordinate each that hold all experts: who has more tokens
// keeps most of its own, and coordinates are as busy as with one group.
TEST(ExpertDispatchTest, TokensStayInTheirGroupWhereThatIsEven) {
  ExpertLayout layout(1, 2, 2);
  ASSERT_TRUE(layout.SetLayer(0, {{0, 1}, {0, 1}}).ok());
  std::vector<int32_t> ids;
  for (int i = 0; i < 400; ++i) ids.push_back(i % 2);
  for (const size_t border : {0, 100, 200, 300, 400}) {
    const Decision decision = Dispatch(layout, 0, ids, {border, ids.size()});
    EXPECT_EQ(decision.loads, DispatchEverywhere(layout, 0, ids).loads);
    int64_t travel = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      travel += decision.coordinates[i] != (i < border ? 0 : 1);
    }
    EXPECT_EQ(travel, std::abs(static_cast<int64_t>(border) - 200))
        << "border " << border;
  }
}

}  // namespace
}  // namespace ringfleet::worker
