// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/model_spec.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cluster/model/config_fields.h"
#include "cluster/model/families.h"
#include "cluster/model/rope_config.h"
#include "cluster/model/text_config.h"
#include "cluster/process/status_macros.h"
#include "nlohmann/json.hpp"

namespace ringfleet::cluster {
namespace {

// Bounds that keep every product of two sizes of one matrix below 2^31 or
// within int64, and that published models stay far below.
constexpr int kMaxHidden = 1 << 20;
constexpr int kMaxWidth = 1 << 24;  // Rows or columns of any matrix.
constexpr int kMaxRank = 1 << 16;
constexpr int kMaxHeadDim = 1 << 14;
constexpr int kMaxLayers = 1 << 12;
constexpr int kMaxExperts = 1 << 14;
constexpr int kMaxPositions = 1 << 30;

void ParseRouter(ConfigFields& fields, const ModelSpec& defaults,
                 ModelSpec* spec) {
  const auto sigmoid = [](const ModelSpec& s) {
    return s.scoring_func == ScoringFunc::kSigmoid;
  };
  const auto noaux = [](const ModelSpec& s) {
    return s.topk_method == TopkMethod::kNoauxTc;
  };
  const std::string score =
      fields.String("scoring_func", sigmoid(defaults) ? "sigmoid" : "softmax");
  const std::string method =
      fields.String("topk_method", noaux(defaults) ? "noaux_tc" : "greedy");
  if (score == "softmax") {
    spec->scoring_func = ScoringFunc::kSoftmax;
  } else if (score == "sigmoid") {
    spec->scoring_func = ScoringFunc::kSigmoid;
  } else {
    fields.Fail("scoring_func",
                absl::StrCat("\"", score, "\", want softmax or sigmoid"));
  }
  if (method == "greedy" || method == "gready") {  // Early files misspell it.
    spec->topk_method = TopkMethod::kGreedy;
  } else if (method == "group_limited_greedy") {
    spec->topk_method = TopkMethod::kGroupLimitedGreedy;
  } else if (method == "noaux_tc") {
    spec->topk_method = TopkMethod::kNoauxTc;
  } else {
    fields.Fail("topk_method",
                absl::StrCat("\"", method,
                             "\", want greedy, group_limited_greedy or "
                             "noaux_tc"));
  }
  // The weights that a choice gets are defined for these pairs only.
  const bool both_differ = noaux(defaults) && !sigmoid(defaults);
  if (both_differ ? sigmoid(*spec) || !noaux(*spec)
                  : noaux(*spec) != sigmoid(*spec)) {
    fields.Fail(
        "scoring_func",
        absl::StrCat("\"", score, "\" with topk_method \"", method, "\", want ",
                     both_differ ? "softmax with noaux_tc"
                                 : "sigmoid with noaux_tc, softmax with the "
                                   "others"));
  }
  if (!fields.status().ok()) return;

  const int group_size = spec->n_routed_experts / spec->n_group;
  if (spec->n_routed_experts % spec->n_group != 0) {
    fields.Fail("n_group", absl::StrCat(spec->n_group,
                                        ", want a divisor of "
                                        "n_routed_experts, ",
                                        spec->n_routed_experts));
  }
  if (spec->topk_method == TopkMethod::kNoauxTc && group_size < 2) {
    fields.Fail(
        "n_group",
        absl::StrCat(spec->n_group, " groups of ", spec->n_routed_experts,
                     " experts, want at least 2 experts in a group "
                     "(noaux_tc scores it by its two best)"));
  }
  if (spec->topk_method != TopkMethod::kGreedy &&
      spec->num_experts_per_tok > group_size * spec->topk_group) {
    fields.Fail("num_experts_per_tok",
                absl::StrCat(spec->num_experts_per_tok, ", want at most ",
                             group_size * spec->topk_group, ", those of ",
                             spec->topk_group, " groups"));
  }
}

// Returns the first of the members of mlp_layer_types from which on all are
// "sparse".
void ParseLayerTypes(ConfigFields& fields, ModelSpec* spec) {
  const nlohmann::json* types = fields.Get("mlp_layer_types");
  if (types == nullptr) return;
  const int layers = spec->num_hidden_layers;
  const auto first = [&]() -> std::optional<int> {
    if (!types->is_array()) return std::nullopt;
    const auto size = static_cast<int>(types->size());
    if (size != layers && size != layers + spec->num_nextn_predict_layers) {
      return std::nullopt;
    }
    int dense = 0;
    while (dense < size && (*types)[dense] == "dense") ++dense;
    for (int i = dense; i < size; ++i) {
      if ((*types)[i] != "sparse") return std::nullopt;
    }
    return std::min(dense, layers);
  }();
  if (!first.has_value()) {
    fields.Fail("mlp_layer_types",
                absl::StrCat(ShowConfigValue(*types),
                             ", want \"dense\" for "
                             "the first layers and \"sparse\" for the others "
                             "of ",
                             layers));
    return;
  }
  if (fields.Get("first_k_dense_replace") == nullptr) {
    spec->first_k_dense_replace = *first;
  }
  if (std::min(spec->first_k_dense_replace, layers) != *first ||
      spec->moe_layer_freq != 1) {
    fields.Fail(
        "mlp_layer_types",
        absl::StrCat(*first, " times \"dense\", but first_k_dense_replace is ",
                     spec->first_k_dense_replace, " and moe_layer_freq ",
                     spec->moe_layer_freq));
  }
}

void ParseExperts(ConfigFields& fields, const ModelSpec& defaults,
                  ModelSpec* spec) {
  spec->n_routed_experts = fields.Int("n_routed_experts", 0, kMaxExperts, 0);
  // Null means none; only an absent member takes the default.
  spec->n_shared_experts = fields.Int(
      "n_shared_experts", 0, 1024,
      fields.Has("n_shared_experts") ? 0 : defaults.n_shared_experts);
  if (spec->n_routed_experts == 0) {
    spec->n_shared_experts = 0;
    return;
  }
  spec->moe_intermediate_size =
      fields.Int("moe_intermediate_size", 1, 1 << 22, std::nullopt);
  if (static_cast<int64_t>(spec->n_shared_experts) *
          spec->moe_intermediate_size >
      kMaxWidth) {
    fields.Fail("n_shared_experts",
                absl::StrCat(
                    spec->n_shared_experts, " times moe_intermediate_size ",
                    spec->moe_intermediate_size, ", want at most ", kMaxWidth));
  }
  spec->num_experts_per_tok =
      fields.Int("num_experts_per_tok", 1, spec->n_routed_experts,
                 defaults.num_experts_per_tok > 0
                     ? std::optional<int>(defaults.num_experts_per_tok)
                     : std::nullopt);
  spec->first_k_dense_replace = fields.Int(
      "first_k_dense_replace", 0, kMaxLayers, defaults.first_k_dense_replace);
  spec->moe_layer_freq = fields.Int("moe_layer_freq", 1, kMaxLayers, 1);
  ParseLayerTypes(fields, spec);
  spec->n_group =
      fields.Int("n_group", 1, spec->n_routed_experts, defaults.n_group);
  spec->topk_group =
      fields.Int("topk_group", 1, spec->n_group, defaults.topk_group);
  spec->norm_topk_prob = fields.Bool("norm_topk_prob", defaults.norm_topk_prob);
  spec->routed_scaling_factor = fields.Number(
      "routed_scaling_factor", -1e6, 1e6, defaults.routed_scaling_factor);
  ParseRouter(fields, defaults, spec);
}

// The indexer of sparse attention.
void ParseIndexer(ConfigFields& fields, const ModelSpec& defaults,
                  ModelSpec* spec) {
  if (defaults.index_topk == 0) {
    if (const nlohmann::json* topk = fields.Get("index_topk");
        topk != nullptr) {
      fields.Fail("index_topk", absl::StrCat(ShowConfigValue(*topk),
                                             ": the sparse attention of "
                                             "DeepSeek-V3.2 "
                                             "(self_attn.indexer), want none "
                                             "in this architecture"));
    }
    return;
  }
  spec->index_topk =
      fields.Int("index_topk", 1, kMaxPositions, defaults.index_topk);
  fields.Ignore({"index_head_dim", "index_n_heads",
                 "index_share_for_mtp_iteration", "index_skip_topk_offset",
                 "index_topk_freq", "index_topk_pattern", "indexer_types",
                 "indexer_rope_interleave"});
}

void ParseAttention(ConfigFields& fields, const ModelSpec& defaults,
                    ModelSpec* spec) {
  spec->num_attention_heads =
      fields.Int("num_attention_heads", 1, kMaxRank, std::nullopt);
  // Null and 0 mean the same; only an absent member takes the default.
  spec->q_lora_rank =
      fields.Int("q_lora_rank", 0, kMaxRank,
                 fields.Has("q_lora_rank") ? 0 : defaults.q_lora_rank);
  spec->kv_lora_rank =
      fields.Int("kv_lora_rank", 1, kMaxRank, defaults.kv_lora_rank);
  spec->qk_nope_head_dim =
      fields.Int("qk_nope_head_dim", 1, kMaxHeadDim, defaults.qk_nope_head_dim);
  spec->qk_rope_head_dim =
      fields.Int("qk_rope_head_dim", 2, kMaxHeadDim, defaults.qk_rope_head_dim);
  spec->v_head_dim =
      fields.Int("v_head_dim", 1, kMaxHeadDim, defaults.v_head_dim);
  if (spec->qk_rope_head_dim % 2 != 0) {
    fields.Fail("qk_rope_head_dim",
                absl::StrCat(spec->qk_rope_head_dim, ", want an even number"));
  }
  // The widest of q_b, kv_b and o.
  const int64_t per_head =
      spec->qk_nope_head_dim +
      static_cast<int64_t>(std::max(spec->qk_rope_head_dim, spec->v_head_dim));
  if (spec->num_attention_heads * per_head > kMaxWidth) {
    fields.Fail("num_attention_heads",
                absl::StrCat(spec->num_attention_heads, " heads of ", per_head,
                             ", want a product of at most ", kMaxWidth));
  }
  ParseIndexer(fields, defaults, spec);
}

struct ParsedConfig {
  ModelSpec spec;
  std::vector<std::string> unread;  // Members that nothing reads, sorted.
};

absl::StatusOr<ParsedConfig> ParseConfigJson(absl::string_view json,
                                             absl::string_view params) {
  RF_ASSIGN_OR_RETURN(nlohmann::json config,
                      ParseConfigObject(json, "config.json"));
  RF_ASSIGN_OR_RETURN(const TextConfig text, ReadTextConfig(std::move(config)));
  const ModelSpec& defaults = text.family->defaults;
  ParsedConfig parsed;
  ModelSpec& spec = parsed.spec;
  spec.architecture = std::string(text.family->architecture);
  spec.model_type = text.model_type;
  ConfigFields fields(text.members, text.Place());
  fields.Ignore({"model_type"});
  spec.vocab_size = fields.Int("vocab_size", 1, kMaxWidth, std::nullopt);
  spec.hidden_size = fields.Int("hidden_size", 1, kMaxHidden, std::nullopt);
  spec.num_hidden_layers =
      fields.Int("num_hidden_layers", 1, kMaxLayers, std::nullopt);
  spec.intermediate_size =
      fields.Int("intermediate_size", 1, kMaxWidth, std::nullopt);
  spec.num_nextn_predict_layers = fields.Int("num_nextn_predict_layers", 0, 64,
                                             defaults.num_nextn_predict_layers);
  ParseAttention(fields, defaults, &spec);
  ParseExperts(fields, defaults, &spec);
  spec.rms_norm_eps =
      fields.Number("rms_norm_eps", 0, 1, defaults.rms_norm_eps);
  spec.max_position_embeddings =
      fields.Int("max_position_embeddings", 1, kMaxPositions,
                 defaults.max_position_embeddings);
  spec.tie_word_embeddings = fields.Bool("tie_word_embeddings", false);
  RefuseOtherMathematics(fields, *text.family);
  RF_RETURN_IF_ERROR(fields.status());

  const uint32_t vocab_size = static_cast<uint32_t>(spec.vocab_size);
  const auto token_ids = [&](const char* field, std::vector<uint32_t> ids) {
    // The defaults' ids name nothing in a smaller vocabulary.
    std::erase_if(ids, [&](uint32_t id) { return id >= vocab_size; });
    if (fields.Has(field)) ids.clear();  // Null means none.
    return fields.TokenIds(field, vocab_size, ids);
  };
  std::vector<uint32_t> bos;
  if (defaults.bos_token_id.has_value()) bos = {*defaults.bos_token_id};
  bos = token_ids("bos_token_id", bos);
  if (!bos.empty()) spec.bos_token_id = bos.front();
  spec.eos_token_ids = token_ids("eos_token_id", defaults.eos_token_ids);
  RF_RETURN_IF_ERROR(fields.status());
  std::vector<std::string> unread;
  RF_RETURN_IF_ERROR(ParseRope(fields, *text.family, params, &spec, &unread));
  if (const nlohmann::json* quantization = fields.Get("quantization_config");
      quantization != nullptr) {
    RF_RETURN_IF_ERROR(ParseQuantization(*quantization, &spec, &unread));
  }
  IgnoreMembersWithoutEffect(fields);
  for (const std::string& name : fields.Unread()) unread.push_back(name);
  for (const std::string& name : unread) {
    parsed.unread.push_back(text.nested ? absl::StrCat("text_config.", name)
                                        : name);
  }
  std::sort(parsed.unread.begin(), parsed.unread.end());
  return parsed;
}

}  // namespace

double YarnSpec::AttentionFactor(double scale) const {
  return factor > 1 ? 0.1 * scale * std::log(factor) + 1 : 1;
}

double QueryScaleSpec::Of(int64_t position) const {
  return 1 + beta * std::log1p(std::floor(static_cast<double>(position) /
                                          original_max_position_embeddings));
}

double ModelSpec::SoftmaxScale() const {
  double scale = 1 / std::sqrt(static_cast<double>(qk_head_dim()));
  if (rope_scaling.has_value() && rope_scaling->scales_softmax) {
    const double m =
        rope_scaling->AttentionFactor(rope_scaling->mscale_all_dim);
    scale *= m * m;
  }
  return scale;
}

absl::string_view ModelSpec::MostPositionsCause(bool dense) const {
  if (MostPositions(dense) == max_position_embeddings) {
    return "max_position_embeddings";
  }
  return "index_topk: the model was trained with sparse attention beyond it, "
         "which this program does not have; --attention dense attends to all "
         "positions";
}

absl::StatusOr<ModelSpec> ParseModelSpec(absl::string_view json,
                                         absl::string_view params) {
  RF_ASSIGN_OR_RETURN(ParsedConfig parsed, ParseConfigJson(json, params));
  return std::move(parsed.spec);
}

absl::StatusOr<std::vector<std::string>> FindUnreadConfigMembers(
    absl::string_view json) {
  RF_ASSIGN_OR_RETURN(ParsedConfig parsed, ParseConfigJson(json, ""));
  return std::move(parsed.unread);
}

}  // namespace ringfleet::cluster
