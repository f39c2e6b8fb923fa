// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/model_tensors.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/model_inspection.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/model/parameter_count.h"
#include "cluster/model/shard_sizes.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/r1_spec.h"

namespace ringfleet::cluster {
namespace {

using kernels::WeightForm;

uint64_t Parameters(const CheckpointSizes& sizes, WeightClass weight_class) {
  return sizes.parameters[static_cast<size_t>(weight_class)];
}

// Counts that others have published or that follow from the paper's sizes.
TEST(PublishedSizesTest, R1HasItsExactNumbers) {
  const CheckpointSizes sizes = PublishedSizes(testing::R1Spec());
  EXPECT_EQ(Parameters(sizes, WeightClass::kRoutedExperts), 653'908'770'816u);
  EXPECT_EQ(Parameters(sizes, WeightClass::kSharedExperts), 2'554'331'136u);
  EXPECT_EQ(Parameters(sizes, WeightClass::kAttention), 11'413'422'080u);
  EXPECT_EQ(Parameters(sizes, WeightClass::kDenseMlp), 1'189'085'184u);
  EXPECT_EQ(Parameters(sizes, WeightClass::kEmbedding), 926'679'040u);
  EXPECT_EQ(Parameters(sizes, WeightClass::kHead), 926'679'040u);
  EXPECT_EQ(Parameters(sizes, WeightClass::kRouter), 106'445'312u);
  EXPECT_EQ(Parameters(sizes, WeightClass::kNorms), 1'006'592u);
  EXPECT_EQ(sizes.main_parameters(), 671'026'419'200u);
  EXPECT_EQ(Parameters(sizes, WeightClass::kMtp), 13'463'426'304u);
  // 688.58 GB of files, their headers included.
  EXPECT_NEAR(static_cast<double>(sizes.all_bytes()) * 1e-9, 688.58, 0.02);
}

TEST(PublishedSizesTest, AgreesWithTheOtherCount) {
  for (ModelSpec spec : {testing::R1Spec(), testing::TinyV3Spec(),
                         testing::TinyV2Spec(), testing::TinyV2LiteSpec()}) {
    EXPECT_EQ(PublishedSizes(spec).main_parameters(), CountParameters(spec));
    spec.tie_word_embeddings = true;
    EXPECT_EQ(PublishedSizes(spec).main_parameters(), CountParameters(spec));
  }
}

TEST(ShardSizesTest, R1CachesItsPublishedNumberOfBytes) {
  EXPECT_EQ(CacheBytesPerPosition(testing::R1Spec(), kernels::Dtype::kBf16),
            70272u);
  // Whole blocks of 128 positions, in 61 layers and the prediction layer.
  EXPECT_EQ(CacheBytes(testing::R1Spec(), kernels::Dtype::kBf16, 3, 129),
            uint64_t{3} * 256 * 62 * 1152);
}

// What ranks divide they divide without gap or overlap: in a form that needs no
// padding the parts are as large as the whole.
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

TEST(InspectModelTest, PublishedCheckpointsAreComplete) {
  for (const char* model : {"tiny-v2-lite", "tiny-v2", "tiny-v3"}) {
    SCOPED_TRACE(model);
    const std::string folder = absl::StrCat(RINGFLEET_TEST_MODELS, "/", model);
    const ModelSpec spec = LoadModelSpec(folder).value();
    const auto checkpoint = OpenCheckpoint(folder).value();
    const ModelInspection found = InspectModel(spec, *checkpoint);
    EXPECT_TRUE(found.ok());
    EXPECT_TRUE(found.unexpected.empty());
    EXPECT_EQ(found.has_mtp, spec.num_nextn_predict_layers > 0);
    uint64_t parameters = 0;
    for (int i = 0; i < kNumWeightClasses; ++i) {
      if (i != static_cast<int>(WeightClass::kMtp)) {
        parameters += found.classes[i].parameters;
      }
    }
    EXPECT_EQ(parameters, CountParameters(spec));
  }
}

TEST(InspectModelTest, SyntheticModelsAreComplete) {
  const ModelSpec spec = LoadModelSpec("synth:tiny").value();
  const auto checkpoint = OpenCheckpoint("synth:tiny").value();
  const ModelInspection found = InspectModel(spec, *checkpoint);
  EXPECT_TRUE(found.ok());
  EXPECT_TRUE(found.has_mtp);
  EXPECT_TRUE(found.unexpected.empty());
  // Made from the same description as published files, down to the bytes.
  uint64_t bytes = 0;
  for (const TensorTally& tally : found.classes) bytes += tally.bytes;
  EXPECT_EQ(bytes, PublishedSizes(spec).all_bytes());
}

TEST(InspectModelTest, NamesWhatIsMissingWrongAndUnexpected) {
  const ModelSpec spec = testing::TinyV3Spec();
  std::vector<testing::TestTensor> tensors =
      testing::RandomTensors(spec, kernels::Dtype::kF8E4M3, 1);
  std::erase_if(tensors, [](const testing::TestTensor& tensor) {
    return tensor.name == "model.layers.1.mlp.experts.3.up_proj.weight" ||
           tensor.name == "model.layers.0.self_attn.o_proj.weight_scale_inv";
  });
  for (testing::TestTensor& tensor : tensors) {
    if (tensor.name == "model.norm.weight") tensor.shape = {1, tensor.shape[0]};
  }
  tensors.push_back(testing::MakeTensor("model.layers.0.extra",
                                        kernels::Dtype::kF32, {1}, {0}));
  const testing::TempDir dir;
  testing::WriteCheckpoint(dir.path(), testing::ConfigJson(spec), tensors, 2);
  const auto checkpoint = OpenCheckpoint(dir.path()).value();
  const ModelInspection found = InspectModel(spec, *checkpoint);
  EXPECT_FALSE(found.ok());
  // The scales of the weight that is missing have lost their purpose.
  EXPECT_EQ(found.missing,
            (std::vector<std::string>{
                "model.layers.0.self_attn.o_proj.weight_scale_inv",
                "model.layers.1.mlp.experts.3.up_proj.weight"}));
  EXPECT_EQ(found.wrong, (std::vector<std::string>{absl::StrCat(
                             "model.norm.weight: shape [1, ", spec.hidden_size,
                             "], want [", spec.hidden_size, "]")}));
  EXPECT_EQ(found.unexpected,
            (std::vector<std::string>{
                "model.layers.0.extra",
                "model.layers.1.mlp.experts.3.up_proj.weight_scale_inv"}));
}

}  // namespace
}  // namespace ringfleet::cluster
