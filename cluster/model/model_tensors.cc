// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/model_tensors.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ringfleet::cluster {
namespace {

constexpr absl::string_view kClassNames[kNumWeightClasses] = {
    "embedding",      "attention",      "dense_mlp",
    "shared_experts", "routed_experts", "router",
    "norms",          "head",           "mtp"};

class TensorLister {
 public:
  explicit TensorLister(const ModelSpec& spec) : spec_(spec) {}

  std::vector<ModelTensor> Take() { return std::move(tensors_); }

  void Vector(std::string name, int64_t size,
              WeightClass weight_class = WeightClass::kNorms) {
    tensors_.push_back({.name = std::move(name),
                        .weight_class = weight_class,
                        .columns = size});
  }

  void Root() {
    tensors_.push_back({.name = "model.embed_tokens.weight",
                        .weight_class = WeightClass::kEmbedding,
                        .rows = spec_.vocab_size,
                        .columns = spec_.hidden_size});
    Vector("model.norm.weight", spec_.hidden_size);
    if (spec_.tie_word_embeddings) return;
    tensors_.push_back({.name = "lm_head.weight",
                        .weight_class = WeightClass::kHead,
                        .split = Split::kVocabRows,
                        .rows = spec_.vocab_size,
                        .columns = spec_.hidden_size,
                        .is_product = true});
  }

  void Layer(bool is_moe) {
    Vector("input_layernorm.weight", spec_.hidden_size);
    Vector("post_attention_layernorm.weight", spec_.hidden_size);
    Attention();
    if (is_moe) return Moe();
    Mlp("mlp.", spec_.intermediate_size, WeightClass::kDenseMlp,
        Split::kDenseRows, Split::kDenseColumns);
  }

  void Mtp() {
    const int64_t hidden = spec_.hidden_size;
    const auto copy = [&](const char* name) {
      tensors_.push_back({.name = name,
                          .rows = spec_.vocab_size,
                          .columns = hidden,
                          .is_copy = true});
    };
    copy("embed_tokens.weight");
    Vector("enorm.weight", hidden);
    Vector("hnorm.weight", hidden);
    tensors_.push_back({.name = "eh_proj.weight",
                        .rows = hidden,
                        .columns = 2 * hidden,
                        .is_product = true});
    Layer(spec_.n_routed_experts > 0);
    Vector("shared_head.norm.weight", hidden);
    copy("shared_head.head.weight");
    for (ModelTensor& tensor : tensors_) {
      tensor.weight_class = WeightClass::kMtp;
    }
  }

 private:
  void Product(absl::string_view name, WeightClass weight_class, Split split,
               int64_t rows, int64_t columns) {
    tensors_.push_back({.name = absl::StrCat(name, ".weight"),
                        .weight_class = weight_class,
                        .split = split,
                        .rows = rows,
                        .columns = columns,
                        .is_product = true,
                        .may_be_fp8 = true,
                        .each_expert = split == Split::kExpertRows ||
                                       split == Split::kExpertColumns});
  }

  void Attention() {
    const auto product = [this](absl::string_view part, Split split,
                                int64_t rows, int64_t columns) {
      Product(absl::StrCat("self_attn.", part), WeightClass::kAttention, split,
              rows, columns);
    };
    const int64_t hidden = spec_.hidden_size;
    const int64_t heads = spec_.num_attention_heads;
    const int64_t q_rank = spec_.q_lora_rank;
    if (q_rank > 0) {
      product("q_a_proj", Split::kNone, q_rank, hidden);
      Vector("self_attn.q_a_layernorm.weight", q_rank);
    }
    product(q_rank > 0 ? "q_b_proj" : "q_proj", Split::kHeadRows,
            heads * spec_.qk_head_dim(), q_rank > 0 ? q_rank : hidden);
    product("kv_a_proj_with_mqa", Split::kNone, spec_.cache_row(), hidden);
    Vector("self_attn.kv_a_layernorm.weight", spec_.kv_lora_rank);
    product("kv_b_proj", Split::kHeadRows,
            heads * (spec_.qk_nope_head_dim + spec_.v_head_dim),
            spec_.kv_lora_rank);
    product("o_proj", Split::kHeadColumns, hidden, heads * spec_.v_head_dim);
  }

  void Mlp(const std::string& prefix, int64_t width, WeightClass weight_class,
           Split rows, Split columns) {
    const int64_t hidden = spec_.hidden_size;
    Product(prefix + "gate_proj", weight_class, rows, width, hidden);
    Product(prefix + "up_proj", weight_class, rows, width, hidden);
    Product(prefix + "down_proj", weight_class, columns, hidden, width);
  }

  void Moe() {
    const int64_t experts = spec_.n_routed_experts;
    tensors_.push_back({.name = "mlp.gate.weight",
                        .weight_class = WeightClass::kRouter,
                        .rows = experts,
                        .columns = spec_.hidden_size});
    if (spec_.topk_method == TopkMethod::kNoauxTc) {
      Vector("mlp.gate.e_score_correction_bias", experts, WeightClass::kRouter);
      tensors_.back().stored_f32 = true;
    }
    Mlp("mlp.experts.*.", spec_.moe_intermediate_size,
        WeightClass::kRoutedExperts, Split::kExpertRows, Split::kExpertColumns);
    if (spec_.n_shared_experts == 0) return;
    Mlp("mlp.shared_experts.",
        int64_t{spec_.n_shared_experts} * spec_.moe_intermediate_size,
        WeightClass::kSharedExperts, Split::kSharedRows, Split::kSharedColumns);
  }

  const ModelSpec& spec_;
  std::vector<ModelTensor> tensors_;
};

void AddPublished(const std::vector<ModelTensor>& tensors,
                  const ModelSpec& spec, uint64_t times,
                  CheckpointSizes* sizes) {
  const auto blocks = [](int64_t size, int64_t block) {
    return static_cast<uint64_t>((size + block - 1) / block);
  };
  for (const ModelTensor& tensor : tensors) {
    const uint64_t count =
        times * (tensor.each_expert ? spec.n_routed_experts : 1);
    const uint64_t elements = count * tensor.elements();
    const auto index = static_cast<size_t>(tensor.weight_class);
    const bool fp8 = tensor.may_be_fp8 && spec.weight_block_rows > 0;
    sizes->parameters[index] += elements;
    sizes->bytes[index] += elements * (fp8 ? 1 : tensor.stored_f32 ? 4 : 2);
    if (!fp8) continue;
    const uint64_t scales = count *
                            blocks(tensor.rows, spec.weight_block_rows) *
                            blocks(tensor.columns, spec.weight_block_columns);
    sizes->scales += scales;
    sizes->bytes[index] += scales * sizeof(float);
  }
}

}  // namespace

absl::string_view WeightClassName(WeightClass weight_class) {
  return kClassNames[static_cast<size_t>(weight_class)];
}

std::vector<ModelTensor> RootTensors(const ModelSpec& spec) {
  TensorLister builder(spec);
  builder.Root();
  return builder.Take();
}

std::vector<ModelTensor> LayerTensors(const ModelSpec& spec, bool is_moe) {
  TensorLister builder(spec);
  builder.Layer(is_moe);
  return builder.Take();
}

std::vector<ModelTensor> MtpTensors(const ModelSpec& spec) {
  TensorLister builder(spec);
  builder.Mtp();
  return builder.Take();
}

std::string LayerPrefix(int layer) {
  return absl::StrCat("model.layers.", layer, ".");
}

LocalShape LocalShapeOf(const ModelTensor& tensor, const ModelSpec& spec,
                        const ShardPlan& plan) {
  LocalShape shape = {.rows = tensor.rows,
                      .columns = tensor.columns,
                      .is_vector = tensor.rows == 0};
  const auto heads = [&](int64_t size) {
    return size / spec.num_attention_heads * plan.heads.size();
  };
  switch (tensor.split) {
    case Split::kNone:
      break;
    case Split::kHeadRows:
      shape.rows = heads(tensor.rows);
      break;
    case Split::kHeadColumns:
      shape.columns = heads(tensor.columns);
      break;
    case Split::kDenseRows:
      shape.rows = plan.dense_columns.size();
      break;
    case Split::kDenseColumns:
      shape.columns = plan.dense_columns.size();
      break;
    case Split::kSharedRows:
      shape.rows = plan.shared_columns.size();
      break;
    case Split::kSharedColumns:
      shape.columns = plan.shared_columns.size();
      break;
    case Split::kExpertRows:
      shape.rows = plan.expert_columns.size();
      break;
    case Split::kExpertColumns:
      shape.columns = plan.expert_columns.size();
      break;
    case Split::kVocabRows:
      shape.rows = plan.vocab.size();
      break;
  }
  return shape;
}

uint64_t CheckpointSizes::main_parameters() const {
  uint64_t total = 0;
  for (int i = 0; i < kNumWeightClasses; ++i) {
    if (i != static_cast<int>(WeightClass::kMtp)) total += parameters[i];
  }
  return total;
}

uint64_t CheckpointSizes::all_bytes() const {
  uint64_t total = 0;
  for (const uint64_t size : bytes) total += size;
  return total;
}

CheckpointSizes PublishedSizes(const ModelSpec& spec) {
  CheckpointSizes sizes;
  int moe_layers = 0;
  for (int i = 0; i < spec.num_hidden_layers; ++i) {
    if (spec.IsMoeLayer(i)) ++moe_layers;
  }
  AddPublished(RootTensors(spec), spec, 1, &sizes);
  AddPublished(LayerTensors(spec, false), spec,
               spec.num_hidden_layers - moe_layers, &sizes);
  if (moe_layers > 0)
    AddPublished(LayerTensors(spec, true), spec, moe_layers, &sizes);
  if (spec.num_nextn_predict_layers > 0) {
    AddPublished(MtpTensors(spec), spec, spec.num_nextn_predict_layers, &sizes);
  }
  return sizes;
}

}  // namespace ringfleet::cluster
