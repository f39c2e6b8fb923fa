// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/text_config.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {
namespace {

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
    "ignore_index",
    "image_token_id",
    "image_token_index",
    "initializer_range",
    "media_placeholder_token_id",
    "moe_router_dtype",
    "multimodal_projector_bias",
    "num_key_value_heads",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "projector_hidden_act",
    "qk_head_dim",
    "return_dict",
    "router_aux_loss_coef",
    "seq_aux",
    "spatial_merge_size",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "use_unified_vision_chunk",
    "vision_config",
    "vision_feature_layer",
    "vision_feature_select_strategy",
};

// Members that the model and its text model have each for itself.
constexpr absl::string_view kMembersOfEach[] = {"architectures", "bos_token_id",
                                                "eos_token_id",  "model_type",
                                                "pad_token_id",  "text_config"};

// Other names that transformers gives to members.
constexpr struct {
  const char* other;
  const char* name;
} kOtherNames[] = {{"num_experts", "n_routed_experts"},
                   {"num_local_experts", "n_routed_experts"},
                   {"num_mtp_layers", "num_nextn_predict_layers"}};

// A member that changes the mathematics of some architecture, and the value
// with which it changes nothing, as JSON. "": no value does.
constexpr struct {
  const char* name;
  const char* none;
} kOtherMathematics[] = {
    {"attention_bias", "false"},
    {"attention_multiplier", ""},
    {"attention_output_gate", "false"},
    {"attn_logit_softcapping", ""},
    {"attn_output_gate", "false"},
    {"clip_qkv", ""},
    {"compress_ratios", "[]"},
    {"dim_model_base", ""},
    {"embedding_multiplier", "1"},
    {"final_logit_softcapping", ""},
    {"gated_attention", "false"},
    {"hc_mult", "1"},
    {"linear_attn_config", ""},
    {"lm_head_bias", "false"},
    {"logit_scale", "1"},
    {"logits_scaling", "1"},
    {"mla_scale_kv_lora", "false"},
    {"mla_scale_q_lora", "false"},
    {"mla_use_nope", "false"},
    {"mlp_bias", "false"},
    {"n_hash_layers", "0"},
    {"no_rope_layers", "[]"},
    {"num_hash_layers", "0"},
    {"o_lora_rank", "0"},
    {"parallel_attn", "false"},
    {"qk_layernorm", "false"},
    {"qk_norm", "false"},
    {"qkv_bias", "false"},
    {"query_pre_attn_scalar", ""},
    {"residual_multiplier", "1"},
    {"rope_interleave", "true"},
    {"sandwich_norm", "false"},
    {"scale_depth", ""},
    {"scale_emb", "1"},
    {"sliding_window", ""},
    {"sliding_window_size", ""},
    {"swiglu_limit", "0"},
    {"use_bias", "false"},
    {"use_mrope", "false"},
    {"use_parallel_residual", "false"},
    {"use_post_norm", "false"},
    {"use_qk_norm", "false"},
    {"use_sliding_window", "false"},
    {"zero_expert_num", "0"},
};

bool IsMemberOfEach(absl::string_view name) {
  return std::find(std::begin(kMembersOfEach), std::end(kMembersOfEach),
                   name) != std::end(kMembersOfEach) ||
         std::find(std::begin(kMembersWithoutEffect),
                   std::end(kMembersWithoutEffect),
                   name) != std::end(kMembersWithoutEffect);
}

// The names that transformers gives to layers with an indexer.
bool IsSparseAttention(const nlohmann::json& type) {
  return type == "indexed_attention" || type == "deepseek_sparse_attention";
}

// Gives members their usual names.
absl::Status RenameMembers(const std::string& place, nlohmann::json* config) {
  for (const auto& [other, name] : kOtherNames) {
    const auto found = config->find(other);
    if (found == config->end()) continue;
    const nlohmann::json value = *found;
    config->erase(found);
    if (value.is_null()) continue;
    const auto usual = config->find(name);
    if (usual != config->end() && !usual->is_null() && *usual != value) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, other, ": ", ShowConfigValue(value), ", but ",
                       name, " is ", ShowConfigValue(*usual)));
    }
    (*config)[name] = value;
  }
  return absl::OkStatus();
}

absl::Status UnknownFamily(absl::string_view what, absl::string_view value) {
  return absl::InvalidArgumentError(absl::StrCat(
      what, " ", value, ": this program runs ", FamilyArchitectures()));
}

absl::StatusOr<std::string> TypeOf(const nlohmann::json& config,
                                   absl::string_view place) {
  const auto type = config.find("model_type");
  if (type == config.end() || type->is_null()) return std::string();
  if (!type->is_string()) {
    return absl::InvalidArgumentError(absl::StrCat(
        place, "model_type: ", ShowConfigValue(*type), ", want a string"));
  }
  return type->get<std::string>();
}

// Returns the first architecture; "" if there is none.
absl::StatusOr<std::string> ArchitectureOf(const nlohmann::json& config) {
  const auto list = config.find("architectures");
  if (list == config.end() || list->is_null()) return std::string();
  if (!list->is_array() || list->empty() || !list->front().is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: architectures: ", ShowConfigValue(*list),
                     ", want a list of names"));
  }
  return list->front().get<std::string>();
}

// Moves the members of text_config to the front.
absl::Status Flatten(nlohmann::json* config, nlohmann::json* members) {
  *members = (*config)["text_config"];
  for (const auto& [name, value] : config->items()) {
    if (value.is_null()) continue;
    const auto own = members->find(name);
    if (own == members->end() || own->is_null()) {
      if (name != "text_config") (*members)[name] = value;
    } else if (*own != value && !IsMemberOfEach(name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "config.json: ", name, ": ", ShowConfigValue(value),
          ", but text_config.", name, " is ", ShowConfigValue(*own)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string TextConfig::Place() const {
  return nested ? "config.json: text_config." : "config.json: ";
}

absl::StatusOr<TextConfig> ReadTextConfig(nlohmann::json config) {
  RF_ASSIGN_OR_RETURN(const std::string architecture, ArchitectureOf(config));
  RF_ASSIGN_OR_RETURN(const std::string outer_type,
                      TypeOf(config, "config.json: "));
  TextConfig text;
  text.model_type = outer_type;
  const auto inner = config.find("text_config");
  text.nested = inner != config.end() && !inner->is_null();
  if (text.nested) {
    if (!inner->is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat("config.json: text_config: ", ShowConfigValue(*inner),
                       ", want an object"));
    }
    RF_ASSIGN_OR_RETURN(const std::string type, TypeOf(*inner, text.Place()));
    if (!type.empty()) text.model_type = type;
  }
  if (architecture.empty() && outer_type.empty()) {
    return absl::InvalidArgumentError(
        "config.json: neither architectures nor model_type names the model");
  }
  const Family* of_type = FindFamilyOfType(outer_type);
  if (architecture.empty() && of_type == nullptr) {
    return UnknownFamily("model_type", outer_type);
  }
  const absl::string_view name =
      architecture.empty() ? of_type->architecture : architecture;
  text.family = FindFamily(name, text.model_type);
  const Family* of_name = FindFamily(name, "");
  if (of_name == nullptr) return UnknownFamily("architecture", name);
  const bool has_part = !of_name->outer_type.empty();
  // The model around a text model may have text models of other types.
  const bool unknown_part =
      has_part && FindFamilyOfType(text.model_type) == nullptr;
  if (text.family == nullptr || unknown_part) {
    return absl::InvalidArgumentError(
        absl::StrCat(text.Place(), "model_type: \"", text.model_type,
                     "\", want \"", of_name->model_type, "\" with ", name));
  }
  if (text.nested && !has_part) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: text_config: ", ShowConfigValue(*inner),
                     ", want none with ", name));
  }
  if (text.model_type.empty() || text.model_type == text.family->outer_type) {
    text.model_type = std::string(text.family->model_type);
  }
  if (text.nested) {
    RF_RETURN_IF_ERROR(Flatten(&config, &text.members));
  } else {
    text.members = std::move(config);
  }
  RF_RETURN_IF_ERROR(RenameMembers(text.Place(), &text.members));
  return text;
}

void RefuseOtherMathematics(ConfigFields& fields, const Family& family) {
  for (const auto& [name, none] : kOtherMathematics) {
    const nlohmann::json* value = fields.Get(name);
    if (value == nullptr) continue;
    const absl::string_view neutral = none;
    if (!neutral.empty() && *value == nlohmann::json::parse(neutral)) continue;
    fields.Fail(name, absl::StrCat(ShowConfigValue(*value), ", want ",
                                   neutral.empty() ? "none" : neutral));
  }
  if (const nlohmann::json* types = fields.Get("layer_types");
      types != nullptr) {
    const bool sparse = family.defaults.index_topk > 0;
    const bool known = types->is_array() &&
                       std::all_of(types->begin(), types->end(),
                                   [&](const nlohmann::json& type) {
                                     return type == "full_attention" ||
                                            (sparse && IsSparseAttention(type));
                                   });
    if (!known) {
      fields.Fail(
          "layer_types",
          absl::StrCat(ShowConfigValue(*types), ", want \"full_attention\"",
                       sparse ? " or \"indexed_attention\"" : "",
                       " for each layer"));
    }
  }
  if (const std::string act = fields.String("hidden_act", "silu");
      act != "silu" && act != "swish") {
    fields.Fail("hidden_act", absl::StrCat("\"", act, "\", want \"silu\""));
  }
}

void IgnoreMembersWithoutEffect(ConfigFields& fields) {
  fields.Ignore(kMembersWithoutEffect);
}

}  // namespace ringfleet::cluster
