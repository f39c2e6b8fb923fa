// SPDX-License-Identifier: Apache-2.0
// The table of a checkpoint's tensors. Each entry has a tensor's name,
// shape, split over ranks, form in published files and form in a worker's
// memory. Loader, sizes, synthetic checkpoints, parameter counts, plans and
// inspections read this table and no other.
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
  kMtp,  // Every tensor of multi-token prediction layers.
};
inline constexpr int kNumWeightClasses = 9;

// Returns "embedding", "attention", "dense_mlp", ....
absl::string_view WeightClassName(WeightClass weight_class);

// The purpose of a tensor in the model. A layer has at most one tensor of a
// role. kExpertGate, kExpertUp and kExpertDown are exceptions: a layer has one
// of each for every expert.
enum class TensorRole : uint8_t {
  kEmbedding,
  kFinalNorm,
  kHead,
  kInputNorm,
  kPostAttentionNorm,
  kQA,
  kQANorm,
  kQB,  // q_b_proj; q_proj in a model without q_lora_rank.
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
  // In multi-token prediction layers only.
  kMtpEmbeddingNorm,
  kMtpHiddenNorm,
  kMtpProjection,
  kMtpHeadNorm,
  kMtpEmbeddingCopy,
  kMtpHeadCopy,
};

// The rows or columns of a tensor that are split over ranks, and the range of
// ShardPlan by which they are split.
enum class Split : uint8_t {
  kNone,  // Replicated.
  kHeadRows,
  kHeadColumns,
  kDenseRows,
  kDenseColumns,
  kSharedRows,
  kSharedColumns,
  kExpertRows,  // In each expert of the rank.
  kExpertColumns,
  kVocabRows,
};

// The form of a tensor in published files. Other checkpoints may have f32, bf16
// or f16 instead.
enum class StoredForm : uint8_t {
  kBf16,
  kF32,
  kQuantized,  // By quantization_config, or bf16 if config.json has none.
};

enum class MemoryForm : uint8_t {
  kNotLoaded,
  kVector,    // float32.
  kLookup,    // Rows for look-up: bf16, or f32 if stored wider.
  kRouter,    // float32 rows.
  kMatrix,    // For products, in the dtype of the fleet or of its experts.
  kKeyValue,  // kMatrix, plus a transposed copy of W_UK of each head.
};

struct ModelTensor {
  // The checkpoint's name without TensorGroup::prefix. "experts.*." stands for
  // each routed expert.
  absl::string_view name;
  TensorRole role = TensorRole::kFinalNorm;
  WeightClass weight_class = WeightClass::kNorms;
  Split split = Split::kNone;
  StoredForm stored = StoredForm::kBf16;
  MemoryForm memory = MemoryForm::kVector;
  int64_t rows = 0;  // 0: a vector [columns].
  int64_t columns = 0;
  bool is_tied = false;  // Reads a tensor that has another role, too.
  bool is_int4 = false;  // By Quantization: the files have codes of four bits.

  bool is_vector() const { return rows == 0; }
  bool each_expert() const {
    return split == Split::kExpertRows || split == Split::kExpertColumns;
  }
  bool may_be_quantized() const { return stored == StoredForm::kQuantized; }
  // Returns the number of values in the tensor, or in one expert's tensor.
  int64_t elements() const { return (is_vector() ? 1 : rows) * columns; }
  // Returns the shape in files: [columns], or [rows, columns].
  std::vector<int64_t> shape() const;
};

// Returns embedding, last norm and head. Their names need no prefix. A tied
// head has the embedding's name.
std::vector<ModelTensor> RootTensors(const ModelSpec& spec);
// Returns the tensors of one decoder layer.
std::vector<ModelTensor> LayerTensors(const ModelSpec& spec, bool is_moe);
// Returns the tensors of one multi-token prediction layer (DeepSeek-V3,
// arXiv:2412.19437, section 2.2), with its own copies of embedding and head.
// All have the class kMtp.
std::vector<ModelTensor> MtpTensors(const ModelSpec& spec);

// Tensors whose names have one prefix.
struct TensorGroup {
  std::string prefix;  // "model.layers.N.", or "" for root tensors.
  int layer = -1;      // N; -1: none.
  bool is_moe = false;
  std::vector<ModelTensor> tensors;
};

// Returns all tensors in the order of a packed shard: embedding, decoder
// layers, norm and head, multi-token prediction layers.
std::vector<TensorGroup> AllTensors(const ModelSpec& spec);
// Returns the group of one layer, from 0. Multi-token prediction layers follow
// the num_hidden_layers decoder layers.
TensorGroup TensorsOfLayer(const ModelSpec& spec, int layer);

// A tensor of a group. If each expert has one, the tensor of one expert.
struct OrderedTensor {
  const ModelTensor* tensor = nullptr;
  int expert = -1;  // From 0; -1: not an expert's tensor.
};
// Returns a group's tensors in the order of a packed shard. The tensors of one
// expert follow each other. The group must outlive the result.
std::vector<OrderedTensor> InOrder(const TensorGroup& group,
                                   size_t num_experts);

// Returns "model.layers.N." for layer N.
std::string LayerPrefix(int layer);
// Returns the name in the checkpoint. Ignores `expert` unless each expert has a
// tensor.
std::string TensorName(absl::string_view prefix, const ModelTensor& tensor,
                       int expert);

// A rank's part of a tensor, or of one expert's tensor. Rows of a vector are
// {0, 1}.
struct LocalSlice {
  Range rows;
  Range columns;
};
LocalSlice LocalSliceOf(const ModelTensor& tensor, const ModelSpec& spec,
                        const ShardPlan& plan);

// Returns why no computation needs the tensor, which a checkpoint may have.
// Returns "" for any other tensor.
absl::string_view SkipReason(const ModelSpec& spec, absl::string_view name);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_MODEL_TENSORS_H_
