// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/model_spec.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cluster/model/config_fields.h"
#include "cluster/model/rope_config.h"
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

// Members of config.json that change no result here: those of training, of
// other programs, and those that follow from others.
constexpr absl::string_view kMembersWithoutEffect[] = {
    "_attn_implementation",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "auto_map",
    "aux_loss_alpha",
    "dtype",
    "ep_size",
    "head_dim",
    "initializer_range",
    "num_key_value_heads",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "qk_head_dim",
    "return_dict",
    "router_aux_loss_coef",
    "seq_aux",
    "torch_dtype",
    "transformers_version",
    "use_cache",
};

// Other names that transformers gives to members.
constexpr struct {
  const char* other;
  const char* name;
} kOtherNames[] = {{"num_experts", "n_routed_experts"},
                   {"num_local_experts", "n_routed_experts"},
                   {"num_mtp_layers", "num_nextn_predict_layers"}};

// Gives members their usual names.
absl::Status RenameMembers(nlohmann::json* config) {
  for (const auto& [other, name] : kOtherNames) {
    const auto found = config->find(other);
    if (found == config->end()) continue;
    const nlohmann::json value = *found;
    config->erase(found);
    if (value.is_null()) continue;
    const auto usual = config->find(name);
    if (usual != config->end() && !usual->is_null() && *usual != value) {
      return absl::InvalidArgumentError(
          absl::StrCat("config.json: ", other, ": ", ShowConfigValue(value),
                       ", but ", name, " is ", ShowConfigValue(*usual)));
    }
    (*config)[name] = value;
  }
  return absl::OkStatus();
}

// DeepseekV2ForCausalLM or DeepseekV3ForCausalLM.
absl::StatusOr<std::string> Architecture(const nlohmann::json& config) {
  const auto wrong = [](absl::string_view what, absl::string_view value) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " ", value,
                     ": this program runs DeepseekV2ForCausalLM and "
                     "DeepseekV3ForCausalLM"));
  };
  const auto list = config.find("architectures");
  if (list != config.end() && !list->is_null()) {
    if (!list->is_array() || list->empty() || !list->front().is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("config.json: architectures: ", ShowConfigValue(*list),
                       ", want a list of names"));
    }
    std::string name = list->front().get<std::string>();
    if (name != "DeepseekV2ForCausalLM" && name != "DeepseekV3ForCausalLM") {
      return wrong("architecture", name);
    }
    return name;
  }
  const auto type = config.find("model_type");
  if (type == config.end() || !type->is_string()) {
    return absl::InvalidArgumentError(
        "config.json: neither architectures nor model_type names the model");
  }
  const std::string name = type->get<std::string>();
  if (name == "deepseek_v2") return std::string("DeepseekV2ForCausalLM");
  if (name == "deepseek_v3") return std::string("DeepseekV3ForCausalLM");
  return wrong("model_type", name);
}

void ParseExperts(ConfigFields& fields, bool v3, ModelSpec* spec) {
  spec->n_routed_experts = fields.Int("n_routed_experts", 0, kMaxExperts, 0);
  // Null means none; only an absent member takes the default.
  spec->n_shared_experts =
      fields.Int("n_shared_experts", 0, 1024,
                 v3 && !fields.Has("n_shared_experts") ? 1 : 0);
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
                 v3 ? std::optional<int>(8) : std::nullopt);
  spec->first_k_dense_replace =
      fields.Int("first_k_dense_replace", 0, kMaxLayers, v3 ? 3 : 0);
  spec->moe_layer_freq = fields.Int("moe_layer_freq", 1, kMaxLayers, 1);
  spec->n_group = fields.Int("n_group", 1, spec->n_routed_experts, v3 ? 8 : 1);
  spec->topk_group = fields.Int("topk_group", 1, spec->n_group, v3 ? 4 : 1);
  spec->norm_topk_prob = fields.Bool("norm_topk_prob", v3);
  spec->routed_scaling_factor =
      fields.Number("routed_scaling_factor", -1e6, 1e6, v3 ? 2.5 : 1);

  const std::string score =
      fields.String("scoring_func", v3 ? "sigmoid" : "softmax");
  const std::string method =
      fields.String("topk_method", v3 ? "noaux_tc" : "greedy");
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
  if ((spec->topk_method == TopkMethod::kNoauxTc) !=
      (spec->scoring_func == ScoringFunc::kSigmoid)) {
    fields.Fail("scoring_func",
                absl::StrCat("\"", score, "\" with topk_method \"", method,
                             "\", want sigmoid with noaux_tc, softmax with "
                             "the others"));
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

void ParseAttention(ConfigFields& fields, ModelSpec* spec) {
  spec->num_attention_heads =
      fields.Int("num_attention_heads", 1, kMaxRank, std::nullopt);
  // Null and 0 mean the same; only an absent member takes the default.
  spec->q_lora_rank = fields.Int("q_lora_rank", 0, kMaxRank, 0);
  spec->kv_lora_rank = fields.Int("kv_lora_rank", 1, kMaxRank, 512);
  spec->qk_nope_head_dim = fields.Int("qk_nope_head_dim", 1, kMaxHeadDim, 128);
  spec->qk_rope_head_dim = fields.Int("qk_rope_head_dim", 2, kMaxHeadDim, 64);
  spec->v_head_dim = fields.Int("v_head_dim", 1, kMaxHeadDim, 128);
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
  for (const char* bias : {"attention_bias", "mlp_bias"}) {
    if (fields.Bool(bias, false)) fields.Fail(bias, "true, want false");
  }
  if (!fields.Bool("rope_interleave", true)) {
    fields.Fail("rope_interleave", "false, want true");
  }
  if (const nlohmann::json* topk = fields.Get("index_topk"); topk != nullptr) {
    fields.Fail("index_topk",
                absl::StrCat(ShowConfigValue(*topk),
                             ": the sparse attention of DeepSeek-V3.2 "
                             "(self_attn.indexer) is not supported"));
  }
}

struct ParsedConfig {
  ModelSpec spec;
  std::vector<std::string> unread;  // Members that nothing reads, sorted.
};

absl::StatusOr<ParsedConfig> ParseConfigJson(absl::string_view json) {
  RF_ASSIGN_OR_RETURN(nlohmann::json config,
                      ParseConfigObject(json, "config.json"));
  ParsedConfig parsed;
  ModelSpec& spec = parsed.spec;
  RF_ASSIGN_OR_RETURN(spec.architecture, Architecture(config));
  RF_RETURN_IF_ERROR(RenameMembers(&config));
  const bool v3 = spec.architecture == "DeepseekV3ForCausalLM";
  ConfigFields fields(config, "config.json: ");
  spec.model_type =
      fields.String("model_type", v3 ? "deepseek_v3" : "deepseek_v2");
  spec.vocab_size = fields.Int("vocab_size", 1, kMaxWidth, std::nullopt);
  spec.hidden_size = fields.Int("hidden_size", 1, kMaxHidden, std::nullopt);
  spec.num_hidden_layers =
      fields.Int("num_hidden_layers", 1, kMaxLayers, std::nullopt);
  spec.intermediate_size =
      fields.Int("intermediate_size", 1, kMaxWidth, std::nullopt);
  ParseAttention(fields, &spec);
  if (!config.contains("q_lora_rank")) spec.q_lora_rank = 1536;
  ParseExperts(fields, v3, &spec);
  spec.rms_norm_eps = fields.Number("rms_norm_eps", 0, 1, 1e-6);
  spec.max_position_embeddings =
      fields.Int("max_position_embeddings", 1, kMaxPositions, v3 ? 4096 : 2048);
  spec.tie_word_embeddings = fields.Bool("tie_word_embeddings", false);
  spec.num_nextn_predict_layers =
      fields.Int("num_nextn_predict_layers", 0, 64, v3 ? 1 : 0);
  if (const std::string act = fields.String("hidden_act", "silu");
      act != "silu" && act != "swish") {
    fields.Fail("hidden_act", absl::StrCat("\"", act, "\", want \"silu\""));
  }
  RF_RETURN_IF_ERROR(fields.status());

  const uint32_t vocab_size = static_cast<uint32_t>(spec.vocab_size);
  // The defaults' ids name nothing in a smaller vocabulary.
  const auto known = [&](uint32_t id) {
    return id < vocab_size ? std::vector<uint32_t>{id}
                           : std::vector<uint32_t>{};
  };
  const auto or_default = [&](const char* field, uint32_t id) {
    return config.contains(field) ? std::vector<uint32_t>{} : known(id);
  };
  const std::vector<uint32_t> bos = fields.TokenIds(
      "bos_token_id", vocab_size, or_default("bos_token_id", v3 ? 0 : 100000));
  if (!bos.empty()) spec.bos_token_id = bos.front();
  spec.eos_token_ids = fields.TokenIds(
      "eos_token_id", vocab_size, or_default("eos_token_id", v3 ? 1 : 100001));
  RF_RETURN_IF_ERROR(fields.status());
  std::vector<std::string> unread;
  RF_RETURN_IF_ERROR(ParseRope(fields, &spec, &unread));
  if (const nlohmann::json* quantization = fields.Get("quantization_config");
      quantization != nullptr) {
    RF_RETURN_IF_ERROR(ParseQuantization(*quantization, &spec, &unread));
  }
  fields.Ignore(kMembersWithoutEffect);
  parsed.unread = fields.Unread();
  parsed.unread.insert(parsed.unread.end(), unread.begin(), unread.end());
  std::sort(parsed.unread.begin(), parsed.unread.end());
  return parsed;
}

}  // namespace

double YarnSpec::AttentionFactor(double scale) const {
  return factor > 1 ? 0.1 * scale * std::log(factor) + 1 : 1;
}

double ModelSpec::SoftmaxScale() const {
  double scale = 1 / std::sqrt(static_cast<double>(qk_head_dim()));
  if (rope_scaling.has_value()) {
    const double m =
        rope_scaling->AttentionFactor(rope_scaling->mscale_all_dim);
    scale *= m * m;
  }
  return scale;
}

absl::StatusOr<ModelSpec> ParseModelSpec(absl::string_view json) {
  RF_ASSIGN_OR_RETURN(ParsedConfig parsed, ParseConfigJson(json));
  return std::move(parsed.spec);
}

absl::StatusOr<std::vector<std::string>> FindUnreadConfigMembers(
    absl::string_view json) {
  RF_ASSIGN_OR_RETURN(ParsedConfig parsed, ParseConfigJson(json));
  return std::move(parsed.unread);
}

}  // namespace ringfleet::cluster
