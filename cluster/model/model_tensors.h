// SPDX-License-Identifier: Apache-2.0
// The tensors of a DeepSeek checkpoint as its config.json implies them: name,
// shape, class, and how ranks divide it (ShardPlan). One description for what
// asks about sizes: plans and inspections.
#ifndef RINGFLEET_CLUSTER_MODEL_MODEL_TENSORS_H_
#define RINGFLEET_CLUSTER_MODEL_MODEL_TENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cluster/model/model_spec.h"
#include "cluster/model/shard_plan.h"

namespace ringfleet::cluster {

enum class WeightClass : uint8_t {
  kEmbedding,
  kAttention,
  kDenseMlp,
  kSharedExperts,
  kRoutedExperts,
  kRouter,
  kNorms,
  kHead,
  kMtp,  // All of the multi-token prediction layers.
};
inline constexpr int kNumWeightClasses = 9;

// "embedding", "attention", "dense_mlp", ...
absl::string_view WeightClassName(WeightClass weight_class);

// Which side of a tensor ranks divide, and by which range of their ShardPlan.
enum class Split : uint8_t {
  kNone,  // Replicated.
  kHeadRows,
  kHeadColumns,
  kDenseRows,
  kDenseColumns,
  kSharedRows,
  kSharedColumns,
  kExpertRows,  // Of the experts that the rank has.
  kExpertColumns,
  kVocabRows,
};

struct ModelTensor {
  // Behind "model.layers.N." for a layer's. "experts.*." stands for one of
  // every routed expert.
  std::string name;
  WeightClass weight_class = WeightClass::kNorms;
  Split split = Split::kNone;
  int64_t rows = 0;  // 0: a vector [columns].
  int64_t columns = 0;
  // Multiplied with activations; stored as fp8 blocks in published fp8 files
  // but for the head and the MTP layer's eh_proj.
  bool is_product = false;
  bool may_be_fp8 = false;
  bool each_expert = false;  // One for every routed expert.
  // A second copy of embedding or head, which is not loaded.
  bool is_copy = false;
  bool stored_f32 = false;  // In published files; else bf16 or fp8.

  // Numbers in one of them.
  int64_t elements() const { return (rows == 0 ? 1 : rows) * columns; }
};

// Embedding, last norm, and the head unless it is tied; names are complete.
std::vector<ModelTensor> RootTensors(const ModelSpec& spec);
// One decoder layer.
std::vector<ModelTensor> LayerTensors(const ModelSpec& spec, bool is_moe);
// One multi-token prediction layer (DeepSeek-V3, arXiv:2412.19437, section
// 2.2), with its own copies of embedding and head; all of class kMtp.
std::vector<ModelTensor> MtpTensors(const ModelSpec& spec);

// "model.layers.N."
std::string LayerPrefix(int layer);

// What a rank has of one tensor, one expert's of those for each expert.
struct LocalShape {
  int64_t rows = 0;  // 0 and is_vector: a vector.
  int64_t columns = 0;
  bool is_vector = false;
};
LocalShape LocalShapeOf(const ModelTensor& tensor, const ModelSpec& spec,
                        const ShardPlan& plan);

// Numbers and bytes of a checkpoint by class.
struct CheckpointSizes {
  uint64_t parameters[kNumWeightClasses] = {};  // Without scales.
  uint64_t bytes[kNumWeightClasses] = {};       // In files, with scales.
  uint64_t scales = 0;                          // Numbers, not parameters.
  // All of the main model; as models are usually counted (CountParameters).
  uint64_t main_parameters() const;
  uint64_t all_bytes() const;  // MTP layers and their copies included.
};
// As published: fp8 blocks with float32 scales where the configuration names
// blocks, else bf16; routers' biases float32. Without headers' bytes.
CheckpointSizes PublishedSizes(const ModelSpec& spec);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_MODEL_TENSORS_H_
