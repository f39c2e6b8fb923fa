// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/prefill_strategy.h"

#include "gtest/gtest.h"

namespace ringfleet::cluster {
namespace {

constexpr v1::PrefillStrategy kReplicated = v1::PREFILL_STRATEGY_REPLICATED;
constexpr v1::PrefillStrategy kSequenceParallel =
    v1::PREFILL_STRATEGY_SEQUENCE_PARALLEL;
constexpr v1::PrefillStrategy kWeightGather =
    v1::PREFILL_STRATEGY_WEIGHT_GATHER;

TEST(PrefillStrategyTest, EachHasItsName) {
  EXPECT_EQ(PrefillStrategyName(v1::PREFILL_STRATEGY_AUTO), "auto");
  EXPECT_EQ(PrefillStrategyName(kReplicated), "replicated");
  EXPECT_EQ(PrefillStrategyName(kSequenceParallel), "sequence_parallel");
  EXPECT_EQ(PrefillStrategyName(kWeightGather), "weight_gather");
}

TEST(PrefillStrategyTest, AutoDealsRowsOutFromThirtyTwoPerRank) {
  const auto of = [](size_t rows, size_t longest, int ranks) {
    return StrategyOfStep(v1::PREFILL_STRATEGY_AUTO, rows, longest, ranks);
  };
  EXPECT_EQ(of(63, 63, 2), kReplicated);
  EXPECT_EQ(of(64, 64, 2), kSequenceParallel);
  EXPECT_EQ(of(64, 64, 3), kReplicated);
  EXPECT_EQ(of(96, 2, 3), kSequenceParallel);
  EXPECT_EQ(of(4096, 4096, 1), kReplicated);
  // Decodes alone, however many.
  EXPECT_EQ(of(4096, 1, 2), kReplicated);
}

// R1's 8 of 256 experts: 512 tokens are 16 an expert.
TEST(PrefillStrategyTest, ExpertsHaveRowsFromSixteenEach) {
  ModelSpec spec;
  spec.num_experts_per_tok = 8;
  spec.n_routed_experts = 256;
  EXPECT_TRUE(ExpertsHaveRows(spec, 512));
  EXPECT_FALSE(ExpertsHaveRows(spec, 511));
  EXPECT_TRUE(ExpertsHaveRows(spec, 0, 0));
  spec.n_routed_experts = 32;
  EXPECT_TRUE(ExpertsHaveRows(spec, 64));
  EXPECT_FALSE(ExpertsHaveRows(spec, 63));
}

TEST(PrefillStrategyTest, AnExplicitOneHoldsForEverySpan) {
  for (const v1::PrefillStrategy strategy :
       {kReplicated, kSequenceParallel, kWeightGather}) {
    EXPECT_EQ(StrategyOfStep(strategy, 2, 2, 8), strategy);
    EXPECT_EQ(StrategyOfStep(strategy, 4096, 4096, 2), strategy);
    EXPECT_EQ(StrategyOfStep(strategy, 8, 1, 8), kReplicated);
  }
}

}  // namespace
}  // namespace ringfleet::cluster
