// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/unread_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cluster/model/model_tensors.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::cluster {
namespace {

using kernels::Dtype;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Names and dtypes of a checkpoint without files.
class NamedTensors final : public TensorSource {
 public:
  // All tensors that `spec` asks for, products in `dtype`.
  NamedTensors(const ModelSpec& spec, Dtype dtype) {
    for (const TensorGroup& group : AllTensors(spec)) {
      for (const auto& [tensor, expert] :
           InOrder(group, spec.n_routed_experts)) {
        const std::string name = TensorName(group.prefix, *tensor, expert);
        const bool fp8 = tensor->may_be_quantized() && dtype == Dtype::kF8E4M3;
        Add(name, fp8 ? dtype : Dtype::kBf16);
        if (fp8) Add(name + "_scale_inv", Dtype::kF32);
      }
    }
  }

  void Add(const std::string& name, Dtype dtype = Dtype::kBf16) {
    tensors_[name] = {.name = name, .dtype = dtype};
  }

  absl::StatusOr<const TensorInfo*> Find(
      absl::string_view name) const override {
    const auto it = tensors_.find(std::string(name));
    if (it == tensors_.end()) return absl::NotFoundError(name);
    return &it->second;
  }
  std::vector<std::string> Names() const override {
    std::vector<std::string> names;
    for (const auto& [name, info] : tensors_) names.push_back(name);
    return names;
  }
  const std::string& FileName(const TensorInfo& tensor) const override {
    return tensor.name;
  }
  absl::StatusOr<std::unique_ptr<const OpenSlice>> Open(
      const TensorSlice& /*slice*/, float /*limit*/) const override {
    return absl::UnimplementedError("names only");
  }

 private:
  std::map<std::string, TensorInfo> tensors_;
};

// TinyV3 has the layers 0 to 2 and the multi-token prediction layer 3.
class UnreadTensorsTest : public ::testing::Test {
 protected:
  std::vector<std::string> With(const std::string& name, int used_layers = 4) {
    NamedTensors tensors(spec_, Dtype::kF8E4M3);
    tensors.Add(name);
    return FindUnreadTensors(spec_, tensors, used_layers);
  }

  ModelSpec spec_ = testing::TinyV3Spec();
};

TEST_F(UnreadTensorsTest, SoundCheckpointsHaveNone) {
  for (const ModelSpec& spec : {testing::TinyV3Spec(), testing::TinyV2Spec(),
                                testing::TinyV2LiteSpec()}) {
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF8E4M3}) {
      const NamedTensors tensors(spec, dtype);
      const int layers = spec.num_hidden_layers + spec.num_nextn_predict_layers;
      EXPECT_THAT(FindUnreadTensors(spec, tensors, layers), IsEmpty());
      EXPECT_TRUE(CheckAllRead(spec, tensors, layers).ok());
    }
  }
}

// Tensors that change the mathematics: biases, an indexer of sparse attention,
// another kind of layer.
TEST_F(UnreadTensorsTest, TensorsOfUsedLayersAreNamed) {
  for (const char* name :
       {"model.layers.0.self_attn.q_a_proj.bias",
        "model.layers.3.self_attn.q_a_proj.bias",
        "model.layers.2.self_attn.indexer.wk.weight",
        "model.layers.2.self_attn.q_proj.weight",
        "model.layers.0.mlp.gate.weight", "model.layers.0.enorm.weight",
        "model.layers.1.mlp.experts.9999.up_proj.weight",
        "model.layers.1.mlp.experts.03.up_proj.weight",
        "model.layers.01.input_layernorm.weight",
        "model.layers.1.input_layernorm.weight_scale_inv",
        "model.layers.1.mlp.gate.weight_scale_inv", "model.norm.bias",
        "lm_head.bias"}) {
    EXPECT_THAT(With(name), ElementsAre(name));
  }
}

TEST_F(UnreadTensorsTest, LayersThatAreNotUsedMayHaveAnything) {
  EXPECT_THAT(With("model.layers.4.self_attn.q_a_proj.bias"), IsEmpty());
  EXPECT_THAT(With("model.layers.61.anything"), IsEmpty());
  EXPECT_THAT(With("model.layers.3.self_attn.q_a_proj.bias", 3), IsEmpty());
}

TEST_F(UnreadTensorsTest, KnownTensorsThatNothingNeedsAreIgnored) {
  EXPECT_THAT(With("model.layers.1.self_attn.rotary_emb.inv_freq"), IsEmpty());
  EXPECT_THAT(With("vision_tower.blocks.0.norm.weight"), IsEmpty());
  EXPECT_THAT(With("multi_modal_projector.linear.weight"), IsEmpty());
  EXPECT_THAT(With("model.mm_projector.in_proj.weight"), IsEmpty());
  spec_.tie_word_embeddings = true;
  EXPECT_THAT(With("lm_head.weight"), IsEmpty());
}

TEST_F(UnreadTensorsTest, StaticScalesOfActivationsBelongToFp8) {
  const std::string name = "model.layers.1.mlp.experts.3.up_proj.input_scale";
  EXPECT_THAT(With(name), IsEmpty());
  spec_.quantization.method = QuantMethod::kNone;
  NamedTensors tensors(spec_, Dtype::kBf16);
  tensors.Add(name);
  EXPECT_THAT(FindUnreadTensors(spec_, tensors, 4), ElementsAre(name));
  EXPECT_THAT(std::string(CheckAllRead(spec_, tensors, 4).message()),
              EndsWith("only fp8 weights have static scales of activations"));
}

// The scales say that the values mean something else.
TEST_F(UnreadTensorsTest, ScalesBelongToFp8Alone) {
  const std::string name = "model.layers.0.self_attn.o_proj.weight";
  NamedTensors tensors(spec_, Dtype::kF8E4M3);
  tensors.Add(name, Dtype::kBf16);
  EXPECT_THAT(FindUnreadTensors(spec_, tensors, 4),
              ElementsAre(name + "_scale_inv"));
}

TEST_F(UnreadTensorsTest, TheErrorNamesTheFirstAndCountsTheRest) {
  NamedTensors tensors(spec_, Dtype::kF8E4M3);
  tensors.Add("model.layers.1.self_attn.q_a_proj.bias");
  absl::Status status = CheckAllRead(spec_, tensors, 4);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("model.layers.1.self_attn.q_a_proj.bias: nothing reads "
                        "this tensor, want"));
  tensors.Add("model.layers.0.self_attn.q_a_proj.bias");
  tensors.Add("model.layers.2.self_attn.q_a_proj.bias");
  status = CheckAllRead(spec_, tensors, 4);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("model.layers.0.self_attn.q_a_proj.bias: nothing reads "
                        "this tensor and 2 more like it"));
}

TEST_F(UnreadTensorsTest, TheErrorNamesTheTechniqueThatIsNotSupported) {
  for (const auto& [name, technique] :
       {std::pair("model.layers.1.self_attn.indexer.wk.weight",
                  "only models with index_topk in config.json have an indexer"),
        std::pair("model.layers.1.mlp.gate.bias", "biases are not supported"),
        std::pair("model.layers.1.extra", "as config.json has it")}) {
    NamedTensors tensors(spec_, Dtype::kF8E4M3);
    tensors.Add(name);
    EXPECT_THAT(std::string(CheckAllRead(spec_, tensors, 4).message()),
                EndsWith(technique));
  }
}

}  // namespace
}  // namespace ringfleet::cluster
