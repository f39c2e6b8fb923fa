// SPDX-License-Identifier: Apache-2.0
// The table of a DeepSeek checkpoint's tensors: name, shape, how ranks divide
// it, how published files store it, and its form in a worker's memory. Loader,
// sizes, synthetic checkpoints, parameter counts, plans and inspections read
// this table and no other.
#ifndef RINGFLEET_CLUSTER_MODEL_MODEL_TENSORS_H_
#define RINGFLEET_CLUSTER_MODEL_MODEL_TENSORS_H_

#include <cstddef>
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

// The purpose of a tensor in the model. A layer has at most one tensor of each
// role, and every expert one of each expert's role.
enum class TensorRole : uint8_t {
  kEmbedding,
  kFinalNorm,
  kHead,
  kInputNorm,
  kPostAttentionNorm,
  kQA,
  kQANorm,
  kQB,  // Or the one query product of a model without q_lora_rank.
  kKvA,
  kKvANorm,
  kKvB,
  kO,
  kDenseGate,
  kDenseUp,
  kDenseDown,
  kRouter,
  kRouterBias,
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  // In a multi-token prediction layer only.
  kMtpEmbeddingNorm,
  kMtpHiddenNorm,
  kMtpProjection,
  kMtpHeadNorm,
  kMtpEmbeddingCopy,
  kMtpHeadCopy,
};

// The side of a tensor that ranks divide, and the range of their ShardPlan that
// divides it.
enum class Split : uint8_t {
  kNone,  // Replicated.
  kHeadRows,
  kHeadColumns,
  kDenseRows,
  kDenseColumns,
  kSharedRows,
  kSharedColumns,
  kExpertRows,  // In each expert that the rank has.
  kExpertColumns,
  kVocabRows,
};

// The form in published files. Other files may have f32, bf16 or f16.
enum class StoredForm : uint8_t {
  kBf16,
  kF32,
  kFp8Blocks,  // fp8 with block scales if the configuration has blocks.
};

enum class MemoryForm : uint8_t {
  kNotLoaded,
  kVector,    // float32.
  kLookup,    // Rows that are looked up: bf16, or f32 if stored wider.
  kRouter,    // float32 rows.
  kMatrix,    // A product in the fleet's dtype, or in that of its experts.
  kKeyValue,  // A kMatrix, and beside it W_UK of each head transposed.
};

struct ModelTensor {
  // Behind TensorGroup::prefix. "experts.*." stands for each routed expert.
  absl::string_view name;
  TensorRole role = TensorRole::kFinalNorm;
  WeightClass weight_class = WeightClass::kNorms;
  Split split = Split::kNone;
  StoredForm stored = StoredForm::kBf16;
  MemoryForm memory = MemoryForm::kVector;
  int64_t rows = 0;  // 0: a vector [columns].
  int64_t columns = 0;
  bool is_tied = false;  // Read from a tensor that has another role, too.

  bool is_vector() const { return rows == 0; }
  bool each_expert() const {
    return split == Split::kExpertRows || split == Split::kExpertColumns;
  }
  bool may_be_fp8() const { return stored == StoredForm::kFp8Blocks; }
  // Numbers in the tensor, or in one expert's.
  int64_t elements() const { return (is_vector() ? 1 : rows) * columns; }
  // As files store it: [columns], or [rows, columns].
  std::vector<int64_t> shape() const;
};

// Embedding, last norm and head; names are complete. A tied head is here, under
// the embedding's name.
std::vector<ModelTensor> RootTensors(const ModelSpec& spec);
// One decoder layer.
std::vector<ModelTensor> LayerTensors(const ModelSpec& spec, bool is_moe);
// One multi-token prediction layer (DeepSeek-V3, arXiv:2412.19437, section
// 2.2), with its own copies of embedding and head; all of class kMtp.
std::vector<ModelTensor> MtpTensors(const ModelSpec& spec);

// Tensors with one prefix in front of their names.
struct TensorGroup {
  std::string prefix;  // "model.layers.N.", or empty.
  int layer = -1;      // N; -1: none.
  bool is_moe = false;
  std::vector<ModelTensor> tensors;
};

// All tensors in the order of a packed shard: embedding, decoder layers, norm
// and head, multi-token prediction layers.
std::vector<TensorGroup> AllTensors(const ModelSpec& spec);
// The group of one layer. Multi-token prediction layers are behind the others.
TensorGroup TensorsOfLayer(const ModelSpec& spec, int layer);

// A tensor of a group, for one of several experts if there is one each.
struct OrderedTensor {
  const ModelTensor* tensor = nullptr;
  int expert = -1;  // From 0; -1: of no expert.
};
// A group's tensors in the order of a packed shard, with those of one expert
// together. The group must outlive what is returned.
std::vector<OrderedTensor> InOrder(const TensorGroup& group,
                                   size_t num_experts);

// "model.layers.N."
std::string LayerPrefix(int layer);
// The name in the checkpoint. `expert` counts if there is one tensor each.
std::string TensorName(absl::string_view prefix, const ModelTensor& tensor,
                       int expert);

// The part of a tensor, or of one expert's, that a rank has. A vector has the
// rows {0, 1}.
struct LocalSlice {
  Range rows;
  Range columns;
};
LocalSlice LocalSliceOf(const ModelTensor& tensor, const ModelSpec& spec,
                        const ShardPlan& plan);

// True if no computation needs the tensor, so that a checkpoint may hold it in
// vain: the table lists such names with the reason.
bool IsIgnored(const ModelSpec& spec, absl::string_view name);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_MODEL_TENSORS_H_
