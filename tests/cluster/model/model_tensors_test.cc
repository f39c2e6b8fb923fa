// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/model_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/r1_spec.h"

namespace ringfleet::cluster {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> NamesInOrder(const TensorGroup& group,
                                      size_t num_experts) {
  std::vector<std::string> names;
  for (const auto& [tensor, expert] : InOrder(group, num_experts)) {
    names.push_back(TensorName(group.prefix, *tensor, expert));
  }
  return names;
}

TEST(ModelTensorsTest, R1HasItsPublishedTensors) {
  const ModelSpec spec = testing::R1Spec();
  size_t weights = 0;
  size_t scales = 0;
  for (const TensorGroup& group : AllTensors(spec)) {
    for (const auto& [tensor, expert] : InOrder(group, spec.n_routed_experts)) {
      ++weights;
      scales += tensor->may_be_quantized() ? 1 : 0;
    }
  }
  // As the index of the published checkpoint has them.
  EXPECT_EQ(weights + scales, 91991u);
}

TEST(ModelTensorsTest, TensorsOfAnExpertAreTogether) {
  const ModelSpec spec = testing::TinyV3Spec();
  const TensorGroup group = TensorsOfLayer(spec, spec.first_k_dense_replace);
  ASSERT_TRUE(group.is_moe);
  const std::vector<std::string> names = NamesInOrder(group, 2);
  const std::string prefix = group.prefix + "mlp.experts.";
  std::vector<std::string> experts;
  for (const std::string& name : names) {
    if (name.starts_with(prefix)) experts.push_back(name.substr(prefix.size()));
  }
  EXPECT_THAT(experts, ElementsAre("0.gate_proj.weight", "0.up_proj.weight",
                                   "0.down_proj.weight", "1.gate_proj.weight",
                                   "1.up_proj.weight", "1.down_proj.weight"));
}

TEST(ModelTensorsTest, ATiedHeadIsReadFromTheEmbedding) {
  ModelSpec spec = testing::TinyV2LiteSpec();
  for (const bool tied : {false, true}) {
    spec.tie_word_embeddings = tied;
    const ModelTensor head = RootTensors(spec).back();
    EXPECT_EQ(head.role, TensorRole::kHead);
    EXPECT_EQ(head.is_tied, tied);
    EXPECT_EQ(head.name, tied ? "model.embed_tokens.weight" : "lm_head.weight");
    EXPECT_EQ(!SkipReason(spec, "lm_head.weight").empty(), tied);
  }
}

TEST(ModelTensorsTest, SlicesOfAllRanksCoverATensorOnce) {
  const ModelSpec spec = testing::R1Spec();
  for (const ModelTensor& tensor : LayerTensors(spec, /*is_moe=*/false)) {
    int64_t elements = 0;
    for (int rank = 0; rank < 3; ++rank) {
      const LocalSlice slice = LocalSliceOf(
          tensor, spec, PlanShard(spec, {.tensor = 3}, rank).value());
      elements += int64_t{1} * slice.rows.size() * slice.columns.size();
    }
    EXPECT_EQ(elements,
              tensor.elements() * (tensor.split == Split::kNone ? 3 : 1))
        << tensor.name;
  }
}

}  // namespace
}  // namespace ringfleet::cluster
