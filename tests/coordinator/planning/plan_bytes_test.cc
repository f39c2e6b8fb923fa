// SPDX-License-Identifier: Apache-2.0
// What plans say about bytes is what workers allocate and count.
#include <vector>

#include "cluster/model/shard_sizes.h"
#include "coordinator/planning/strategy_cost.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/r1_spec.h"
#include "tests/testing/rank_world.h"
#include "worker/loading/shard_loader.h"
#include "worker/model/kv_cache.h"

namespace ringfleet::worker {
namespace {

using cluster::MeshShape;
using cluster::ModelSpec;
using kernels::WeightForm;
using ringfleet::testing::RankWorld;

TEST(PlanBytesTest, WeightsTakeWhatTheLoaderAllocates) {
  const std::vector<v1::Dtype> dtypes = {
      v1::DTYPE_F32,  v1::DTYPE_BF16,         v1::DTYPE_INT8,
      v1::DTYPE_INT4, v1::DTYPE_INT4_EXPERTS, v1::DTYPE_NATIVE};
  std::vector<ModelSpec> specs = {
      ringfleet::testing::R1Spec(), ringfleet::testing::TinyV3Spec(),
      ringfleet::testing::TinyV2Spec(), ringfleet::testing::TinyV2LiteSpec()};
  specs.push_back(specs.back());
  specs.back().tie_word_embeddings = true;
  specs.push_back(specs[1]);
  specs.back().n_shared_experts = 0;
  // Kimi: experts in int4, whose 28 columns become whole groups.
  specs.push_back(specs[1]);
  specs.back().quantization = {
      .method = cluster::QuantMethod::kInt4,
      .int4_roles = 1u << static_cast<int>(cluster::TensorRole::kExpertGate) |
                    1u << static_cast<int>(cluster::TensorRole::kExpertUp) |
                    1u << static_cast<int>(cluster::TensorRole::kExpertDown)};
  specs.back().moe_intermediate_size = 96;
  for (const ModelSpec& spec : specs) {
    for (const v1::Dtype dtype : dtypes) {
      const cluster::WeightForms forms = cluster::FormsOf(dtype, spec);
      for (const MeshShape& mesh :
           {MeshShape{}, MeshShape{1, 1, 5}, MeshShape{1, 3, 2}}) {
        for (int rank = 0; rank < mesh.world_size(); ++rank) {
          const auto plan = cluster::PlanShard(spec, mesh, rank);
          ASSERT_TRUE(plan.ok()) << plan.status();
          EXPECT_EQ(cluster::ShardSizesOf(spec, *plan, forms).total(),
                    ShardBytes(spec, *plan,
                               {.form = forms.products,
                                .expert_form = forms.experts,
                                .native = forms.native}));
        }
      }
    }
  }
}

TEST(PlanBytesTest, CachesTakeWhatWorkersReserve) {
  const ModelSpec spec = ringfleet::testing::R1Spec();
  for (const kernels::Dtype dtype :
       {kernels::Dtype::kF32, kernels::Dtype::kBf16, kernels::Dtype::kInt8}) {
    EXPECT_EQ(
        cluster::CacheBytes(spec, dtype, 3, 1000),
        KvCache::Bytes(dtype, spec.num_hidden_layers + 1, spec.kv_lora_rank,
                       spec.qk_rope_head_dim, 3 * kernels::CacheBlocks(1000)));
  }
}

// One token chooses as many experts as the configuration says, so the mean that
// a plan predicts is exact for all ranks together.
TEST(PlanBytesTest, AStepReadsWhatWorkersCount) {
  const ModelSpec spec = ringfleet::testing::TinyV3Spec();
  const ringfleet::testing::TempDir folder;
  ringfleet::testing::WriteRandomModel(folder.path(), spec,
                                       kernels::Dtype::kBf16, 1);
  for (const WeightForm form : {WeightForm::kF32, WeightForm::kInt8}) {
    for (const MeshShape& mesh :
         {MeshShape{}, MeshShape{1, 1, 3}, MeshShape{1, 2, 1}}) {
      RankWorld world(folder.path(), {.mesh = mesh, .form = form});
      v1::StepPlan admit;
      admit.add_admissions()->set_max_tokens(2);
      for (const uint32_t id : {3, 44, 9}) {
        admit.mutable_admissions(0)->add_prompt_ids(id);
      }
      admit.add_prefills()->set_count(3);
      world.Step(admit);
      v1::StepPlan decode;
      decode.add_decodes()->set_slot(0);
      double counted = 0;
      for (const v1::StepResult& result : world.Step(decode)) {
        counted += static_cast<double>(result.bytes_read());
      }
      coordinator::CostInputs inputs = {
          .spec = spec,
          .forms = {form, form},
          .cache_dtype = form == WeightForm::kF32 ? kernels::Dtype::kF32
                                                  : kernels::Dtype::kBf16};
      inputs.hosts.assign(mesh.world_size(), {.read_bytes_per_second = 1e9,
                                              .int8_ops_per_second = 1e9});
      inputs.network.bytes_per_second = 1e9;
      const coordinator::ModelOnFleet model(inputs);
      const coordinator::StrategyCost cost(model, {.mesh = mesh});
      // W_UV's part of kv_b is rounded down to a byte, by rank and layer.
      EXPECT_NEAR(cost.Step({.first_position = 3}).bytes_read, counted,
                  mesh.world_size() * spec.num_hidden_layers)
          << mesh.expert << " x " << mesh.tensor;
    }
  }
}

}  // namespace
}  // namespace ringfleet::worker
