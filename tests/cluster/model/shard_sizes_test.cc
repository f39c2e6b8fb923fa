// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/shard_sizes.h"

#include <gtest/gtest.h>

#include "tests/testing/r1_spec.h"

namespace ringfleet::cluster {
namespace {

using kernels::WeightForm;

TEST(ShardSizesTest, R1CachesItsPublishedNumberOfBytes) {
  EXPECT_EQ(CacheBytesPerPosition(testing::R1Spec(), kernels::Dtype::kBf16),
            70272u);
  // Whole blocks of 128 positions, in 61 layers and the prediction layer.
  EXPECT_EQ(CacheBytes(testing::R1Spec(), kernels::Dtype::kBf16, 3, 129),
            uint64_t{3} * 256 * 62 * 1152);
}

// Ranks divide weights without gap or overlap: in a form that needs no padding
// the parts are as large as the whole.
TEST(ShardSizesTest, RanksTogetherHaveEveryDividedWeightOnce) {
  const ModelSpec spec = testing::R1Spec();
  const WeightForms forms = {WeightForm::kBf16Rows, WeightForm::kBf16Rows};
  const ShardSizes whole =
      ShardSizesOf(spec, PlanShard(spec, {}, 0).value(), forms);
  for (const MeshShape& mesh : {MeshShape{1, 1, 3}, MeshShape{1, 7, 1},
                                MeshShape{1, 2, 8}, MeshShape{1, 5, 3}}) {
    ShardSizes sum;
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const ShardSizes part =
          ShardSizesOf(spec, PlanShard(spec, mesh, rank).value(), forms);
      for (int i = 0; i < kNumWeightClasses; ++i) sum.bytes[i] += part.bytes[i];
    }
    for (const WeightClass divided :
         {WeightClass::kDenseMlp, WeightClass::kSharedExperts,
          WeightClass::kRoutedExperts, WeightClass::kHead}) {
      const auto i = static_cast<size_t>(divided);
      EXPECT_EQ(sum.bytes[i], whole.bytes[i]) << WeightClassName(divided);
    }
    for (const WeightClass replicated :
         {WeightClass::kEmbedding, WeightClass::kRouter, WeightClass::kNorms}) {
      const auto i = static_cast<size_t>(replicated);
      EXPECT_EQ(sum.bytes[i], whole.bytes[i] * mesh.world_size())
          << WeightClassName(replicated);
    }
    // Latents' products are replicated, heads divided.
    const auto attention = static_cast<size_t>(WeightClass::kAttention);
    const uint64_t latents = uint64_t{2} * 61 * 7168 * (1536 + 512 + 64);
    EXPECT_EQ(sum.bytes[attention] - whole.bytes[attention],
              latents * (mesh.world_size() - 1));
  }
}

// int8: a byte a weight in whole panels of 64 outputs, a float32 scale for
// each.
TEST(ShardSizesTest, CountsPanelsAndScales) {
  const ModelSpec spec = testing::R1Spec();
  const ShardPlan plan = PlanShard(spec, {1, 1, 12}, 0).value();
  ASSERT_EQ(plan.expert_columns.size(), 170);
  const ShardSizes sizes = ShardSizesOf(spec, plan, {});
  const uint64_t gate = 192 * (7168 + 4);
  const uint64_t down = 7168 * (172 + 4);  // Columns in steps of four.
  EXPECT_EQ(sizes.bytes[static_cast<size_t>(WeightClass::kRoutedExperts)],
            58 * 256 * (2 * gate + down));
}

}  // namespace
}  // namespace ringfleet::cluster
