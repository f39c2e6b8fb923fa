// SPDX-License-Identifier: Apache-2.0
// What benchmarks ask of an executor: ids fed instead of those drawn, going
// back, and the bytes of a step.
#include <algorithm>
#include <vector>

#include "cluster/model/shard_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/products/weight_matrix.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/rank_world.h"
#include "worker/execution/executor.h"

namespace ringfleet::worker {
namespace {

using ringfleet::testing::RankWorld;
using ringfleet::testing::RankWorldOptions;
using ringfleet::testing::TempDir;
using ::testing::HasSubstr;

const std::vector<uint32_t> kIds = {3, 44, 9, 71, 20, 5, 66};

class ForcedIdsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempDir();
    ringfleet::testing::WriteRandomModel(folder_->path(),
                                         ringfleet::testing::TinyV3Spec(),
                                         kernels::Dtype::kBf16, 1);
  }
  static void TearDownTestSuite() { delete folder_; }

  static v1::StepPlan Admit(int prompt_n, int forced_n, int max_tokens) {
    v1::StepPlan plan;
    v1::Admission* admission = plan.add_admissions();
    for (int i = 0; i < prompt_n; ++i) admission->add_prompt_ids(kIds[i]);
    for (int i = 0; i < forced_n; ++i) {
      admission->add_forced_ids(kIds[prompt_n + i]);
    }
    admission->set_max_tokens(max_tokens);
    v1::PrefillSpan* span = plan.add_prefills();
    span->set_count(prompt_n);
    return plan;
  }
  static v1::StepPlan Decode() {
    v1::StepPlan plan;
    plan.add_decodes()->set_slot(0);
    return plan;
  }
  static v1::StepPlan RewindAndDecode(uint32_t length) {
    v1::StepPlan plan = Decode();
    v1::Rewind* rewind = plan.add_rewinds();
    rewind->set_length(length);
    return plan;
  }

  static TempDir* folder_;
};

TempDir* ForcedIdsTest::folder_ = nullptr;

// Feeding an id as a decode is evaluating a prompt that has it.
TEST_F(ForcedIdsTest, WhatIsFedDecidesWhatIsDrawn) {
  RankWorld world(folder_->path(), {.mesh = {.tensor = 2}});
  world.Step(Admit(3, 4, 5));
  for (int n = 4; n <= 7; ++n) {
    const v1::SlotResult drawn = world.Step(Decode())[0].slots(0);
    RankWorld other(folder_->path(), {});
    const v1::SlotResult expected = other.Step(Admit(n, 0, 1))[0].slots(0);
    EXPECT_EQ(drawn.tokens(0), expected.tokens(0)) << n;
    // Another world size, and materialised against absorbed attention.
    EXPECT_NEAR(drawn.logprobs(0), expected.logprobs(0), 1e-4) << n;
    EXPECT_EQ(drawn.finish(), n == 7 ? v1::FINISH_REASON_LENGTH
                                     : v1::FINISH_REASON_UNSPECIFIED);
  }
}

TEST_F(ForcedIdsTest, GoingBackRepeatsEveryBit) {
  RankWorld world(folder_->path(), {.mesh = {.tensor = 2}});
  const v1::StepResult prompt = world.Step(Admit(3, 4, 5))[0];
  std::vector<std::string> decoded;
  for (int i = 0; i < 4; ++i) {
    decoded.push_back(world.Step(Decode())[0].slots(0).SerializeAsString());
  }
  // To the prompt's end, into what was generated, into the prompt.
  for (const uint32_t length : {3u, 5u}) {
    for (uint32_t i = length - 3; i < 4; ++i) {
      const v1::StepPlan plan =
          i == length - 3 ? RewindAndDecode(length) : Decode();
      EXPECT_EQ(world.Step(plan)[0].slots(0).SerializeAsString(), decoded[i])
          << length << " " << i;
    }
  }
  v1::StepPlan again;
  again.add_rewinds()->set_length(0);
  again.add_prefills()->set_count(3);
  EXPECT_EQ(world.Step(again)[0].slots(0).SerializeAsString(),
            prompt.slots(0).SerializeAsString());
  EXPECT_EQ(world.Step(Decode())[0].slots(0).SerializeAsString(), decoded[0]);
}

TEST_F(ForcedIdsTest, ImpossibleOnesAreRefused) {
  const auto refused = [](int prompt_n, int forced_n, uint32_t length) {
    RankWorld world(folder_->path(), {});
    world.Step(Admit(prompt_n, forced_n, 3));
    std::vector<v1::StepResult> results;
    return world.TryStep(RewindAndDecode(length), &results)[0];
  };
  // Nobody knows what was fed there, or it lies ahead.
  EXPECT_EQ(refused(3, 0, 3).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(3, 2, 4).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused(3, 2, 4).message()),
              HasSubstr("slot 0 goes back to 4 positions, want at most 3"));
  EXPECT_TRUE(refused(3, 1, 3).ok());
  RankWorld world(folder_->path(), {});
  v1::StepPlan plan = Admit(2, 1, 3);
  plan.mutable_admissions(0)->set_forced_ids(0, 1u << 30);
  std::vector<v1::StepResult> results;
  EXPECT_EQ(world.TryStep(plan, &results)[0].code(),
            absl::StatusCode::kInvalidArgument);
}

// What one token needs of a rank's weights and cache, of all routed experts
// `experts`.
uint64_t BytesOfOneToken(const cluster::ModelSpec& spec,
                         const cluster::ShardPlan& plan,
                         kernels::WeightForm form, uint64_t experts,
                         uint64_t cache_bytes) {
  const auto bytes = [form](uint64_t rows, uint64_t columns) {
    return kernels::WeightMatrix::Bytes(form, rows, columns);
  };
  const uint64_t hidden = spec.hidden_size;
  const uint64_t heads = plan.heads.size();
  const uint64_t rank = spec.kv_lora_rank;
  const uint64_t nope = spec.qk_nope_head_dim;
  const uint64_t v = spec.v_head_dim;
  const auto mlp = [&](uint64_t width) {
    return 2 * bytes(width, hidden) + bytes(hidden, width);
  };
  uint64_t all = bytes(plan.vocab.size(), hidden);  // The head.
  for (int layer = 0; layer < spec.num_hidden_layers; ++layer) {
    all += bytes(spec.q_lora_rank, hidden) +
           bytes(heads * spec.qk_head_dim(), spec.q_lora_rank) +
           bytes(rank + spec.qk_rope_head_dim, hidden) +
           bytes(heads * rank, nope) +                         // W_UK^T.
           bytes(heads * (nope + v), rank) * v / (nope + v) +  // W_UV.
           bytes(hidden, heads * v) + cache_bytes;
    if (spec.IsMoeLayer(layer)) {
      all += experts * mlp(spec.moe_intermediate_size) +
             mlp(plan.shared_columns.size()) +
             hidden * spec.n_routed_experts * sizeof(float);
    } else {
      all += mlp(plan.dense_columns.size());
    }
  }
  return all;
}

TEST_F(ForcedIdsTest, AStepCountsWhatItNeedsFromMemory) {
  RankWorld world(folder_->path(), {.form = kernels::WeightForm::kBf16});
  world.Step(Admit(3, 4, 5));
  const cluster::ModelSpec& spec = world.spec();
  // The fourth position is written, then read with the others.
  const uint64_t one = world.Step(Decode())[0].bytes_read();
  EXPECT_EQ(
      one, BytesOfOneToken(spec, cluster::PlanShard(spec, {}, 0).value(),
                           kernels::WeightForm::kBf16, spec.num_experts_per_tok,
                           uint64_t{4} * spec.cache_row() * sizeof(uint16_t)));

  // Whole experts on one rank or the other: no one is counted twice.
  const cluster::MeshShape mesh = {.expert = 2};
  RankWorld ranks(folder_->path(), {.mesh = mesh});
  ranks.Step(Admit(3, 4, 5));
  const std::vector<v1::StepResult> parts = ranks.Step(Decode());
  uint64_t wanted = 0;
  for (int rank = 0; rank < 2; ++rank) {
    wanted += BytesOfOneToken(
        spec, cluster::PlanShard(spec, mesh, rank).value(),
        kernels::WeightForm::kF32, rank == 0 ? spec.num_experts_per_tok : 0,
        uint64_t{4} * spec.cache_row() * sizeof(float));
  }
  EXPECT_EQ(parts[0].bytes_read() + parts[1].bytes_read(), wanted);
}

// Two tokens in one step share every matrix; of the experts only those that
// both choose.
TEST_F(ForcedIdsTest, TokensOfAStepShareMatrices) {
  RankWorld world(folder_->path(), {.form = kernels::WeightForm::kBf16});
  v1::StepPlan admit = Admit(3, 4, 5);
  v1::StepPlan second = Admit(3, 4, 5);
  second.mutable_admissions(0)->set_slot(1);
  second.mutable_prefills(0)->set_slot(1);
  admit.MergeFrom(second);
  world.Step(admit);
  v1::StepPlan both = Decode();
  both.add_decodes()->set_slot(1);
  // The same tokens choose the same experts: only the cache is another's.
  const cluster::ModelSpec& spec = world.spec();
  const uint64_t cache =
      uint64_t{4} * spec.cache_row() * 2 * spec.num_hidden_layers;
  EXPECT_EQ(
      world.Step(both)[0].bytes_read(),
      BytesOfOneToken(spec, cluster::PlanShard(spec, {}, 0).value(),
                      kernels::WeightForm::kBf16, spec.num_experts_per_tok, 0) +
          2 * cache);
}

}  // namespace
}  // namespace ringfleet::worker
