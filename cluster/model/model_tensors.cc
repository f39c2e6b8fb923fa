// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/model_tensors.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

constexpr absl::string_view kClassNames[kNumWeightClasses] = {
    "embedding",      "attention",      "dense_mlp",
    "shared_experts", "routed_experts", "router",
    "norms",          "head",           "mtp"};

// Which group has a row of the table.
enum class TablePart : uint8_t {
  kFirst,     // Before all layers.
  kMtpFirst,  // At the beginning of a multi-token prediction layer.
  kLayer,     // At the beginning of every layer.
  kDense,     // Behind kLayer, in a layer without experts.
  kMoe,       // Behind kLayer, in a layer with experts.
  kMtpLast,   // At the end of a multi-token prediction layer.
  kLast,      // Behind the decoder layers.
};

using TensorSize = int64_t (*)(const ModelSpec& spec);
using TensorCondition = bool (*)(const ModelSpec& spec);

// The sizes of config.json, in the letters of worker/model/weights.h.
struct TensorSizes {
  static int64_t V(const ModelSpec& s) { return s.vocab_size; }
  static int64_t D(const ModelSpec& s) { return s.hidden_size; }
  static int64_t TwoD(const ModelSpec& s) { return 2 * D(s); }
  static int64_t QRank(const ModelSpec& s) { return s.q_lora_rank; }
  static int64_t KvRank(const ModelSpec& s) { return s.kv_lora_rank; }
  static int64_t CacheRow(const ModelSpec& s) { return s.cache_row(); }
  static int64_t Heads(const ModelSpec& s) { return s.num_attention_heads; }
  static int64_t Queries(const ModelSpec& s) {
    return Heads(s) * s.qk_head_dim();
  }
  static int64_t KeysAndValues(const ModelSpec& s) {
    return Heads(s) * (s.qk_nope_head_dim + s.v_head_dim);
  }
  static int64_t Values(const ModelSpec& s) { return Heads(s) * s.v_head_dim; }
  static int64_t Dense(const ModelSpec& s) { return s.intermediate_size; }
  static int64_t Experts(const ModelSpec& s) { return s.n_routed_experts; }
  static int64_t Expert(const ModelSpec& s) { return s.moe_intermediate_size; }
  static int64_t Shared(const ModelSpec& s) {
    return s.n_shared_experts * Expert(s);
  }
};

struct TensorConditions {
  static bool LowRankQueries(const ModelSpec& s) { return s.q_lora_rank > 0; }
  static bool DenseQueries(const ModelSpec& s) { return s.q_lora_rank == 0; }
  static bool RouterBias(const ModelSpec& s) { return s.has_router_bias(); }
  static bool SharedExperts(const ModelSpec& s) {
    return s.n_shared_experts > 0;
  }
  static bool OwnHead(const ModelSpec& s) { return !s.tie_word_embeddings; }
  static bool TiedHead(const ModelSpec& s) { return s.tie_word_embeddings; }
  static bool Indexer(const ModelSpec& s) { return s.index_topk > 0; }
  static bool Fp8(const ModelSpec& s) {
    return s.quantization.method == QuantMethod::kFp8;
  }
};

struct TableRow {
  TablePart part;
  absl::string_view name;
  TensorRole role;
  WeightClass weight_class;
  TensorSize rows;  // Null: a vector.
  TensorSize columns;
  Split split;
  StoredForm stored;
  MemoryForm memory;
  TensorCondition condition;  // Null: in every model.
};

constexpr TableRow NormRow(TablePart part, absl::string_view name,
                           TensorRole role, TensorSize size,
                           TensorCondition condition = nullptr) {
  return {part,
          name,
          role,
          WeightClass::kNorms,
          nullptr,
          size,
          Split::kNone,
          StoredForm::kBf16,
          MemoryForm::kVector,
          condition};
}

// A product that quantised files store as codes.
constexpr TableRow ProductRow(TablePart part, absl::string_view name,
                              TensorRole role, WeightClass weight_class,
                              TensorSize rows, TensorSize columns, Split split,
                              TensorCondition condition = nullptr) {
  return {part,
          name,
          role,
          weight_class,
          rows,
          columns,
          split,
          StoredForm::kQuantized,
          MemoryForm::kMatrix,
          condition};
}

constexpr char kEmbeddingName[] = "model.embed_tokens.weight";

absl::Span<const TableRow> TensorTable() {
  using enum TablePart;
  using Role = TensorRole;
  using Class = WeightClass;
  using Stored = StoredForm;
  using Memory = MemoryForm;
  using Size = TensorSizes;
  using If = TensorConditions;
  static constexpr TableRow kTable[] = {
      {kFirst, kEmbeddingName, Role::kEmbedding, Class::kEmbedding, Size::V,
       Size::D, Split::kNone, Stored::kBf16, Memory::kLookup, nullptr},

      {kMtpFirst, "embed_tokens.weight", Role::kMtpEmbeddingCopy, Class::kMtp,
       Size::V, Size::D, Split::kNone, Stored::kBf16, Memory::kNotLoaded,
       nullptr},
      NormRow(kMtpFirst, "enorm.weight", Role::kMtpEmbeddingNorm, Size::D),
      NormRow(kMtpFirst, "hnorm.weight", Role::kMtpHiddenNorm, Size::D),
      {kMtpFirst, "eh_proj.weight", Role::kMtpProjection, Class::kMtp, Size::D,
       Size::TwoD, Split::kNone, Stored::kBf16, Memory::kMatrix, nullptr},

      NormRow(kLayer, "input_layernorm.weight", Role::kInputNorm, Size::D),
      NormRow(kLayer, "post_attention_layernorm.weight",
              Role::kPostAttentionNorm, Size::D),
      ProductRow(kLayer, "self_attn.q_a_proj.weight", Role::kQA,
                 Class::kAttention, Size::QRank, Size::D, Split::kNone,
                 If::LowRankQueries),
      NormRow(kLayer, "self_attn.q_a_layernorm.weight", Role::kQANorm,
              Size::QRank, If::LowRankQueries),
      ProductRow(kLayer, "self_attn.q_b_proj.weight", Role::kQB,
                 Class::kAttention, Size::Queries, Size::QRank,
                 Split::kHeadRows, If::LowRankQueries),
      ProductRow(kLayer, "self_attn.q_proj.weight", Role::kQB,
                 Class::kAttention, Size::Queries, Size::D, Split::kHeadRows,
                 If::DenseQueries),
      ProductRow(kLayer, "self_attn.kv_a_proj_with_mqa.weight", Role::kKvA,
                 Class::kAttention, Size::CacheRow, Size::D, Split::kNone),
      NormRow(kLayer, "self_attn.kv_a_layernorm.weight", Role::kKvANorm,
              Size::KvRank),
      {kLayer, "self_attn.kv_b_proj.weight", Role::kKvB, Class::kAttention,
       Size::KeysAndValues, Size::KvRank, Split::kHeadRows, Stored::kQuantized,
       Memory::kKeyValue, nullptr},
      ProductRow(kLayer, "self_attn.o_proj.weight", Role::kO, Class::kAttention,
                 Size::D, Size::Values, Split::kHeadColumns),

      ProductRow(kDense, "mlp.gate_proj.weight", Role::kDenseGate,
                 Class::kDenseMlp, Size::Dense, Size::D, Split::kDenseRows),
      ProductRow(kDense, "mlp.up_proj.weight", Role::kDenseUp, Class::kDenseMlp,
                 Size::Dense, Size::D, Split::kDenseRows),
      ProductRow(kDense, "mlp.down_proj.weight", Role::kDenseDown,
                 Class::kDenseMlp, Size::D, Size::Dense, Split::kDenseColumns),

      {kMoe, "mlp.gate.weight", Role::kRouter, Class::kRouter, Size::Experts,
       Size::D, Split::kNone, Stored::kBf16, Memory::kRouter, nullptr},
      {kMoe, "mlp.gate.e_score_correction_bias", Role::kRouterBias,
       Class::kRouter, nullptr, Size::Experts, Split::kNone, Stored::kF32,
       Memory::kVector, If::RouterBias},
      ProductRow(kMoe, "mlp.experts.*.gate_proj.weight", Role::kExpertGate,
                 Class::kRoutedExperts, Size::Expert, Size::D,
                 Split::kExpertRows),
      ProductRow(kMoe, "mlp.experts.*.up_proj.weight", Role::kExpertUp,
                 Class::kRoutedExperts, Size::Expert, Size::D,
                 Split::kExpertRows),
      ProductRow(kMoe, "mlp.experts.*.down_proj.weight", Role::kExpertDown,
                 Class::kRoutedExperts, Size::D, Size::Expert,
                 Split::kExpertColumns),
      ProductRow(kMoe, "mlp.shared_experts.gate_proj.weight", Role::kSharedGate,
                 Class::kSharedExperts, Size::Shared, Size::D,
                 Split::kSharedRows, If::SharedExperts),
      ProductRow(kMoe, "mlp.shared_experts.up_proj.weight", Role::kSharedUp,
                 Class::kSharedExperts, Size::Shared, Size::D,
                 Split::kSharedRows, If::SharedExperts),
      ProductRow(kMoe, "mlp.shared_experts.down_proj.weight", Role::kSharedDown,
                 Class::kSharedExperts, Size::D, Size::Shared,
                 Split::kSharedColumns, If::SharedExperts),

      NormRow(kMtpLast, "shared_head.norm.weight", Role::kMtpHeadNorm, Size::D),
      {kMtpLast, "shared_head.head.weight", Role::kMtpHeadCopy, Class::kMtp,
       Size::V, Size::D, Split::kNone, Stored::kBf16, Memory::kNotLoaded,
       nullptr},

      NormRow(kLast, "model.norm.weight", Role::kFinalNorm, Size::D),
      {kLast, "lm_head.weight", Role::kHead, Class::kHead, Size::V, Size::D,
       Split::kVocabRows, Stored::kBf16, Memory::kMatrix, If::OwnHead},
      {kLast, kEmbeddingName, Role::kHead, Class::kHead, Size::V, Size::D,
       Split::kVocabRows, Stored::kBf16, Memory::kMatrix, If::TiedHead},
  };
  return kTable;
}

// Tensors that are known and that no computation needs.
struct SkippedTensors {
  absl::string_view pattern;  // '*' as first and last character: anything.
  absl::string_view reason;
  TensorCondition condition;  // Null: in every model.
};

constexpr absl::string_view kImages = "images are not supported";
// A range of each row's own rounds no more than one range for all texts, which
// also cuts off what lies beyond it.
constexpr absl::string_view kDynamic = "activations are quantised as they come";

constexpr SkippedTensors kSkippedTensors[] = {
    {"*.rotary_emb.inv_freq", "computed from config.json", nullptr},
    {"lm_head.weight", "a copy of the embedding, which a tied head is",
     TensorConditions::TiedHead},
    {"*.self_attn.indexer.*", "attention is dense, it chooses no positions",
     TensorConditions::Indexer},
    {"vision_tower.*", kImages, nullptr},
    {"vision_model.*", kImages, nullptr},
    {"visual.*", kImages, nullptr},
    {"multi_modal_projector.*", kImages, nullptr},
    {"mm_projector.*", kImages, nullptr},
    {"model.vision_tower.*", kImages, nullptr},
    {"model.multi_modal_projector.*", kImages, nullptr},
    {"model.mm_projector.*", kImages, nullptr},
    {"*activation_scale", kDynamic, nullptr},
    {"*.input_scale", kDynamic, TensorConditions::Fp8},
};

void AppendPart(const ModelSpec& spec, TablePart part,
                std::vector<ModelTensor>* tensors) {
  for (const TableRow& row : TensorTable()) {
    if (row.part != part) continue;
    if (row.condition != nullptr && !row.condition(spec)) continue;
    tensors->push_back(
        {.name = row.name,
         .role = row.role,
         .weight_class = row.weight_class,
         .split = row.split,
         .stored = row.stored,
         .memory = row.memory,
         .rows = row.rows == nullptr ? 0 : row.rows(spec),
         .columns = row.columns(spec),
         .is_tied = row.condition == TensorConditions::TiedHead,
         .is_int4 = spec.quantization.IsInt4(row.role, /*mtp=*/false)});
  }
}

bool MatchesPattern(absl::string_view name, absl::string_view pattern) {
  const bool any_before = absl::ConsumePrefix(&pattern, "*");
  const bool any_behind = absl::ConsumeSuffix(&pattern, "*");
  if (any_before && any_behind) return absl::StrContains(name, pattern);
  if (any_before) return absl::EndsWith(name, pattern);
  if (any_behind) return absl::StartsWith(name, pattern);
  return name == pattern;
}

}  // namespace

absl::string_view WeightClassName(WeightClass weight_class) {
  return kClassNames[static_cast<size_t>(weight_class)];
}

std::vector<int64_t> ModelTensor::shape() const {
  if (is_vector()) return {columns};
  return {rows, columns};
}

std::vector<ModelTensor> RootTensors(const ModelSpec& spec) {
  std::vector<ModelTensor> tensors;
  AppendPart(spec, TablePart::kFirst, &tensors);
  AppendPart(spec, TablePart::kLast, &tensors);
  return tensors;
}

std::vector<ModelTensor> LayerTensors(const ModelSpec& spec, bool is_moe) {
  std::vector<ModelTensor> tensors;
  AppendPart(spec, TablePart::kLayer, &tensors);
  AppendPart(spec, is_moe ? TablePart::kMoe : TablePart::kDense, &tensors);
  return tensors;
}

std::vector<ModelTensor> MtpTensors(const ModelSpec& spec) {
  std::vector<ModelTensor> tensors;
  AppendPart(spec, TablePart::kMtpFirst, &tensors);
  AppendPart(spec, TablePart::kLayer, &tensors);
  AppendPart(spec,
             spec.n_routed_experts > 0 ? TablePart::kMoe : TablePart::kDense,
             &tensors);
  AppendPart(spec, TablePart::kMtpLast, &tensors);
  for (ModelTensor& tensor : tensors) {
    tensor.weight_class = WeightClass::kMtp;
    tensor.is_int4 = spec.quantization.IsInt4(tensor.role, /*mtp=*/true);
  }
  return tensors;
}

std::vector<TensorGroup> AllTensors(const ModelSpec& spec) {
  std::vector<TensorGroup> groups(1);
  AppendPart(spec, TablePart::kFirst, &groups.back().tensors);
  for (int i = 0; i < spec.num_hidden_layers; ++i) {
    groups.push_back(TensorsOfLayer(spec, i));
  }
  AppendPart(spec, TablePart::kLast, &groups.emplace_back().tensors);
  for (int i = 0; i < spec.num_nextn_predict_layers; ++i) {
    groups.push_back(TensorsOfLayer(spec, spec.num_hidden_layers + i));
  }
  return groups;
}

TensorGroup TensorsOfLayer(const ModelSpec& spec, int layer) {
  RF_CHECK(layer >= 0 &&
           layer < spec.num_hidden_layers + spec.num_nextn_predict_layers);
  const bool is_mtp = layer >= spec.num_hidden_layers;
  const bool is_moe =
      is_mtp ? spec.n_routed_experts > 0 : spec.IsMoeLayer(layer);
  return {.prefix = LayerPrefix(layer),
          .layer = layer,
          .is_moe = is_moe,
          .tensors = is_mtp ? MtpTensors(spec) : LayerTensors(spec, is_moe)};
}

std::vector<OrderedTensor> InOrder(const TensorGroup& group,
                                   size_t num_experts) {
  const std::vector<ModelTensor>& tensors = group.tensors;
  std::vector<OrderedTensor> ordered;
  for (size_t i = 0; i < tensors.size();) {
    if (!tensors[i].each_expert()) {
      ordered.push_back({.tensor = &tensors[i++]});
      continue;
    }
    size_t end = i;
    while (end < tensors.size() && tensors[end].each_expert()) ++end;
    for (size_t expert = 0; expert < num_experts; ++expert) {
      for (size_t j = i; j < end; ++j) {
        ordered.push_back(
            {.tensor = &tensors[j], .expert = static_cast<int>(expert)});
      }
    }
    i = end;
  }
  return ordered;
}

std::string LayerPrefix(int layer) {
  return absl::StrCat("model.layers.", layer, ".");
}

std::string TensorName(absl::string_view prefix, const ModelTensor& tensor,
                       int expert) {
  if (!tensor.each_expert()) return absl::StrCat(prefix, tensor.name);
  return absl::StrCat(
      prefix, absl::StrReplaceAll(tensor.name, {{"*", absl::StrCat(expert)}}));
}

LocalSlice LocalSliceOf(const ModelTensor& tensor, const ModelSpec& spec,
                        const ShardPlan& plan) {
  LocalSlice slice = {
      .rows = {0, tensor.is_vector() ? 1 : static_cast<int>(tensor.rows)},
      .columns = {0, static_cast<int>(tensor.columns)}};
  const auto heads = [&](int64_t size) {
    const int of_head = static_cast<int>(size / spec.num_attention_heads);
    return Range{plan.heads.begin * of_head, plan.heads.end * of_head};
  };
  switch (tensor.split) {
    case Split::kNone:
      break;
    case Split::kHeadRows:
      slice.rows = heads(tensor.rows);
      break;
    case Split::kHeadColumns:
      slice.columns = heads(tensor.columns);
      break;
    case Split::kDenseRows:
      slice.rows = plan.dense_columns;
      break;
    case Split::kDenseColumns:
      slice.columns = plan.dense_columns;
      break;
    case Split::kSharedRows:
      slice.rows = plan.shared_columns;
      break;
    case Split::kSharedColumns:
      slice.columns = plan.shared_columns;
      break;
    case Split::kExpertRows:
      slice.rows = plan.expert_columns;
      break;
    case Split::kExpertColumns:
      slice.columns = plan.expert_columns;
      break;
    case Split::kVocabRows:
      slice.rows = plan.vocab;
      break;
  }
  return slice;
}

absl::string_view SkipReason(const ModelSpec& spec, absl::string_view name) {
  for (const SkippedTensors& skipped : kSkippedTensors) {
    if (skipped.condition != nullptr && !skipped.condition(spec)) continue;
    if (MatchesPattern(name, skipped.pattern)) return skipped.reason;
  }
  return "";
}

}  // namespace ringfleet::cluster
