// SPDX-License-Identifier: Apache-2.0
// The memory that gathered weights take is known before anything is loaded.
#include "worker/strategies/weight_gather.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "cluster/checkpoint/open_model.h"
#include "cluster/checkpoint/safetensors.h"
#include "kernels/thread_pool.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/r1_spec.h"
#include "worker/execution/loaded_shard.h"
#include "worker/loading/shard_loader.h"
#include "worker/model/kv_cache.h"

namespace ringfleet::worker {
namespace {

using cluster::MeshShape;
using cluster::ModelSpec;
using kernels::WeightForm;
using kernels::WeightMatrix;

uint64_t Padded(std::initializer_list<const WeightMatrix*> matrices) {
  uint64_t bytes = 0;
  for (const WeightMatrix* matrix : matrices) {
    bytes += (matrix->bytes() + 63) / 64 * 64;
  }
  return bytes;
}

uint64_t Padded(const MlpWeights& network) {
  return Padded({&network.gate, &network.up, &network.down});
}

// From matrices as ranks hold them.
uint64_t LargestPart(const std::vector<Weights>& ranks, const MeshShape& mesh) {
  uint64_t largest = 0;
  for (size_t layer = 0; layer < ranks[0].layers.size(); ++layer) {
    uint64_t attention = 0, dense = 0, shared = 0;
    std::vector<uint64_t> experts(mesh.num_coordinates());
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const LayerWeights& weights = ranks[rank].layers[layer];
      const AttentionWeights& a = weights.attention;
      attention += Padded({&a.q_b, &a.kv_b, &a.uk_transposed, &a.o});
      if (!weights.is_moe) {
        dense += Padded(weights.dense);
        continue;
      }
      shared += Padded(weights.moe.shared);
      experts[rank / mesh.tensor] += Padded(weights.moe.experts[0]);
    }
    largest = std::max({largest, attention, dense, shared,
                        *std::max_element(experts.begin(), experts.end())});
  }
  return largest;
}

TEST(WeightGatherTest, TheLargestPartIsWhatRanksHoldOfItTogether) {
  kernels::ThreadPool pool(1);
  for (const ModelSpec& spec : {ringfleet::testing::TinyV3Spec(),
                                ringfleet::testing::TinyV2LiteSpec()}) {
    const ringfleet::testing::TempDir folder;
    ringfleet::testing::WriteRandomModel(folder.path(), spec,
                                         kernels::Dtype::kBf16, 1);
    const auto checkpoint = cluster::OpenCheckpoint(folder.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    for (const auto& [form, experts] :
         {std::pair(WeightForm::kF32, WeightForm::kF32),
          std::pair(WeightForm::kInt8, WeightForm::kInt4)}) {
      for (const MeshShape& mesh : {MeshShape{1, 1, 2}, MeshShape{1, 1, 5},
                                    MeshShape{1, 2, 1}, MeshShape{1, 2, 3}}) {
        std::vector<Weights> ranks;
        for (const cluster::ShardPlan& plan :
             cluster::PlanAllShards(spec, mesh)) {
          auto weights = LoadShard(
              **checkpoint, spec, plan, {.form = form, .expert_form = experts},
              pool, [](uint64_t, uint64_t) { return absl::OkStatus(); });
          ASSERT_TRUE(weights.ok()) << weights.status();
          ranks.push_back(*std::move(weights));
        }
        EXPECT_EQ(WeightGatherBytes(spec, mesh, form, experts),
                  LargestPart(ranks, mesh));
      }
    }
  }
}

TEST(WeightGatherTest, ALoadLeavesMemoryForIt) {
  const auto load = [](v1::PrefillStrategy strategy, uint64_t limit) {
    v1::LoadRequest request;
    request.set_model_path(RINGFLEET_TEST_MODELS "/tiny-v3");
    request.set_dtype(v1::DTYPE_F32);
    request.mutable_layout()->mutable_mesh()->set_data(1);
    request.mutable_layout()->mutable_mesh()->set_expert(1);
    request.mutable_layout()->mutable_mesh()->set_tensor(2);
    request.set_slots(64);
    request.set_memory_limit_bytes(limit);
    request.set_prefill_strategy(strategy);
    return LoadShardFor(
        request, {.available_memory_bytes = uint64_t{64} << 30},
        [](const v1::LoadProgress&) { return absl::OkStatus(); });
  };
  const auto all = load(v1::PREFILL_STRATEGY_REPLICATED, uint64_t{8} << 30);
  ASSERT_TRUE(all.ok()) << all.status();
  const LoadedShard& shard = **all;
  const uint64_t gathered = WeightGatherBytes(
      shard.spec, shard.plan.mesh, WeightForm::kF32, WeightForm::kF32);
  const auto cache_bytes = [&](int blocks) {
    return KvCache::Bytes(
        shard.cache_dtype,
        shard.spec.num_hidden_layers + shard.spec.num_nextn_predict_layers,
        shard.spec.kv_lora_rank, shard.spec.qk_rope_head_dim, blocks);
  };
  // Just enough for the cache of all positions without what is gathered.
  const uint64_t limit = shard.resident_bytes + (uint64_t{256} << 20) +
                         cache_bytes(shard.cache_blocks);
  const auto replicated = load(v1::PREFILL_STRATEGY_REPLICATED, limit);
  ASSERT_TRUE(replicated.ok()) << replicated.status();
  EXPECT_EQ((*replicated)->cache_blocks, shard.cache_blocks);
  const auto gathers = load(v1::PREFILL_STRATEGY_WEIGHT_GATHER, limit);
  ASSERT_TRUE(gathers.ok()) << gathers.status();
  const int fits = (*gathers)->cache_blocks;
  EXPECT_LT(fits, shard.cache_blocks);
  EXPECT_LE(cache_bytes(fits) + gathered, cache_bytes(shard.cache_blocks));
  EXPECT_GT(cache_bytes(fits + 1) + gathered, cache_bytes(shard.cache_blocks));
}

}  // namespace
}  // namespace ringfleet::worker
