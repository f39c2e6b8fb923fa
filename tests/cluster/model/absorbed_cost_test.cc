// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/absorbed_cost.h"

#include "gtest/gtest.h"
#include "tests/testing/r1_spec.h"

namespace ringfleet::cluster {
namespace {

TEST(AbsorbedCostTest, GrowsWithThePrompt) {
  const ModelSpec spec = testing::R1Spec();
  EXPECT_NEAR(AbsorbedCost(spec, 1, 512), 1, 1e-3);
  EXPECT_GT(AbsorbedCost(spec, 2048, 512), 1.02);
  EXPECT_GT(AbsorbedCost(spec, 8192, 512), AbsorbedCost(spec, 2048, 512));
  EXPECT_LT(AbsorbedCost(spec, 8192, 512), 2);
}

// One layer, one chunk, counted by hand.
TEST(AbsorbedCostTest, CountsBothForms) {
  ModelSpec spec = testing::R1Spec();
  spec.num_hidden_layers = 1;
  spec.first_k_dense_replace = 1;
  constexpr double kChunk = 512;
  constexpr double kPairs = 512.0 * 513 / 2;
  const double weights = 7168.0 * 1536 + 1536.0 * 128 * 192 + 7168.0 * 576 +
                         128.0 * 128 * 7168 + 3 * 7168.0 * 18432;
  const double absorbed = 128 * (kChunk * 512 * 256 + kPairs * (2 * 512 + 64));
  const double expanded = 128 * (kChunk * 512 * 256 + kPairs * (256 + 64));
  EXPECT_NEAR(AbsorbedCost(spec, 512, 512),
              (kChunk * weights + absorbed) / (kChunk * weights + expanded),
              1e-9);
}

}  // namespace
}  // namespace ringfleet::cluster
