// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/shard_plan.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::cluster {
namespace {

TEST(SplitRangeTest, PartsTileTheWholeAndDifferByAtMostOne) {
  for (int total = 0; total <= 40; ++total) {
    for (int parts = 1; parts <= 20; ++parts) {
      int next = 0;
      for (int i = 0; i < parts; ++i) {
        const Range range = SplitRange(total, parts, i);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.size(), total / parts);
        EXPECT_LE(range.size(), total / parts + 1);
        next = range.end;
      }
      EXPECT_EQ(next, total);
    }
  }
}

TEST(SplitRangeTest, LargeTotalsDoNotOverflow) {
  EXPECT_EQ(SplitRange(1 << 24, 1000, 999).end, 1 << 24);
}

TEST(PlanShardTest, RanksTileEveryAxisOfEveryMesh) {
  const ModelSpec spec = testing::TinyV2Spec();
  for (int expert = 1; expert <= 9; ++expert) {
    for (int tensor = 1; tensor <= 9; ++tensor) {
      // Times each unit of an axis is owned. An expert's column is owned once
      // however many ranks share the expert.
      std::vector<int> heads(spec.num_attention_heads);
      std::vector<int> vocab(spec.vocab_size);
      std::vector<int> dense(spec.intermediate_size);
      std::vector<int> shared(spec.n_shared_experts *
                              spec.moe_intermediate_size);
      std::vector<std::vector<int>> experts(
          spec.n_routed_experts, std::vector<int>(spec.moe_intermediate_size));
      const MeshShape mesh = {.data = 1, .expert = expert, .tensor = tensor};
      for (int rank = 0; rank < mesh.world_size(); ++rank) {
        const auto plan = PlanShard(spec, mesh, rank);
        ASSERT_TRUE(plan.ok()) << plan.status();
        EXPECT_EQ(plan->rank, rank);
        const auto count = [](Range range, std::vector<int>& owned) {
          for (int i = range.begin; i < range.end; ++i) ++owned[i];
        };
        count(plan->heads, heads);
        count(plan->vocab, vocab);
        count(plan->dense_columns, dense);
        count(plan->shared_columns, shared);
        for (int e = plan->experts.begin; e < plan->experts.end; ++e) {
          count(plan->expert_columns, experts[e]);
        }
      }
      EXPECT_EQ(heads, std::vector<int>(heads.size(), 1));
      EXPECT_EQ(vocab, std::vector<int>(vocab.size(), 1));
      EXPECT_EQ(dense, std::vector<int>(dense.size(), 1));
      EXPECT_EQ(shared, std::vector<int>(shared.size(), 1));
      for (const auto& columns : experts) {
        EXPECT_EQ(columns, std::vector<int>(columns.size(), 1));
      }
    }
  }
}

TEST(PlanShardTest, TensorIsTheFastestAxis) {
  const ModelSpec spec = testing::TinyV3Spec();
  const auto plan = PlanShard(spec, {.data = 1, .expert = 2, .tensor = 4}, 5);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->experts, (Range{4, 8}));          // 1 of 2, 8 experts.
  EXPECT_EQ(plan->expert_columns, (Range{7, 14}));  // 1 of 4, 28 columns.
  EXPECT_EQ(plan->dense_columns, (Range{45, 54}));  // 5 of 8, 72 columns.
}

TEST(PlanShardTest, ADataGroupIsAWholeModelButForTheExperts) {
  const ModelSpec spec = testing::TinyV3Spec();
  const MeshShape mesh = {.data = 3, .expert = 2, .tensor = 2};
  std::vector<int> experts(spec.n_routed_experts);
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const auto plan = PlanShard(spec, mesh, rank);
    ASSERT_TRUE(plan.ok());
    const auto alone =
        PlanShard(spec, {.data = 1, .expert = 2, .tensor = 2}, rank % 4);
    ASSERT_TRUE(alone.ok());
    EXPECT_EQ(plan->data_group, rank / 4);
    EXPECT_EQ(plan->expert_coordinate, rank / 2);
    EXPECT_EQ(plan->heads, alone->heads);
    EXPECT_EQ(plan->vocab, alone->vocab);
    EXPECT_EQ(plan->dense_columns, alone->dense_columns);
    EXPECT_EQ(plan->shared_columns, alone->shared_columns);
    EXPECT_EQ(plan->expert_columns, alone->expert_columns);
    if (rank % 2 != 0) continue;
    for (int e = plan->experts.begin; e < plan->experts.end; ++e) ++experts[e];
  }
  EXPECT_EQ(experts, std::vector<int>(experts.size(), 1));
}

TEST(PlanShardTest, ARankMayOwnNoHead) {
  const ModelSpec spec = testing::TinyV3Spec();  // 6 heads.
  int idle = 0;
  for (int rank = 0; rank < 8; ++rank) {
    const auto plan = PlanShard(spec, {.tensor = 8}, rank);
    ASSERT_TRUE(plan.ok());
    idle += plan->heads.size() == 0;
  }
  EXPECT_EQ(idle, 2);
}

TEST(PlanShardTest, RejectsImpossibleMeshesAndRanks) {
  const ModelSpec spec = testing::TinyV3Spec();
  const auto code = [&](const MeshShape& mesh, int rank) {
    return PlanShard(spec, mesh, rank).status().code();
  };
  EXPECT_EQ(code({}, 0), absl::StatusCode::kOk);
  EXPECT_EQ(code({}, 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({}, -1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.expert = 0}, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.tensor = -2}, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.data = 1 << 20, .expert = 1 << 20, .tensor = 1 << 20}, 0),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.data = 2}, 2), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ringfleet::cluster
