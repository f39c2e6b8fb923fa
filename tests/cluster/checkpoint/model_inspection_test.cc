// SPDX-License-Identifier: Apache-2.0
#include "cluster/checkpoint/model_inspection.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/model/published_sizes.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::cluster {
namespace {

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
  EXPECT_EQ(found.wrong,
            (std::vector<std::string>{
                "model.layers.0.extra: nothing reads this tensor",
                absl::StrCat("model.norm.weight: shape [1, ", spec.hidden_size,
                             "], want [", spec.hidden_size, "]")}));
  EXPECT_EQ(found.unexpected,
            (std::vector<std::string>{
                "model.layers.0.extra",
                "model.layers.1.mlp.experts.3.up_proj.weight_scale_inv"}));
}

// A tensor that an inspection calls wrong stops a load, and no other does.
TEST(InspectModelTest, UnreadTensorsAreWrongAndIgnoredOnesAreNot) {
  const ModelSpec spec = testing::TinyV3Spec();
  std::vector<testing::TestTensor> tensors =
      testing::RandomTensors(spec, kernels::Dtype::kBf16, 1);
  for (const char* name :
       {"model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.4.anything", "vision_tower.patch.weight"}) {
    tensors.push_back(
        testing::MakeTensor(name, kernels::Dtype::kF32, {1}, {0}));
  }
  const testing::TempDir dir;
  testing::WriteCheckpoint(dir.path(), testing::ConfigJson(spec), tensors, 2);
  const ModelInspection found =
      InspectModel(spec, *OpenCheckpoint(dir.path()).value());
  EXPECT_TRUE(found.ok());
  EXPECT_EQ(found.unexpected.size(), 3u);
}

}  // namespace
}  // namespace ringfleet::cluster
