// SPDX-License-Identifier: Apache-2.0
#include "cluster/synthetic/synthetic_model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cluster/process/status_macros.h"
#include "cluster/synthetic/synthetic_tokenizer.h"
#include "nlohmann/json.hpp"

namespace ringfleet::cluster {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::string_view kPrefix = "synth:";
// Above it all choices fall on num_experts_per_tok experts anyway.
constexpr double kMaxZipf = 3;

// The values in which presets differ. The rest of config.json is R1's.
struct Preset {
  absl::string_view name;
  const char* architecture = "DeepseekV3ForCausalLM";
  const char* model_type = "deepseek_v3";
  int vocab_size, hidden_size, num_hidden_layers, num_attention_heads;
  int q_lora_rank, kv_lora_rank;
  int qk_nope_head_dim, qk_rope_head_dim, v_head_dim;
  int intermediate_size, moe_intermediate_size;
  int n_routed_experts, num_experts_per_tok, n_group, topk_group;
  int num_nextn_predict_layers;
  int max_position_embeddings;
  int original_max_position_embeddings, factor;  // YaRN's; 0: none.
  int beta_fast = 32;
  int rope_theta = 10000;
  double routed_scaling_factor = 2.5;
  double rms_norm_eps = 1e-6;
  int index_topk = 0;  // 0: none.
};

constexpr Preset kPresets[] = {
    {.name = "tiny",
     .vocab_size = 512,
     .hidden_size = 160,  // One whole fp8 block and a quarter.
     .num_hidden_layers = 3,
     .num_attention_heads = 4,
     .q_lora_rank = 72,
     .kv_lora_rank = 32,
     .qk_nope_head_dim = 32,
     .qk_rope_head_dim = 16,
     .v_head_dim = 32,
     .intermediate_size = 320,
     .moe_intermediate_size = 24,
     .n_routed_experts = 16,
     .num_experts_per_tok = 4,
     .n_group = 4,
     .topk_group = 2,
     .num_nextn_predict_layers = 1,
     .max_position_embeddings = 1024,
     .original_max_position_embeddings = 256,
     .factor = 4},
    {.name = "r1-slice",
     .vocab_size = 32768,
     .hidden_size = 7168,
     .num_hidden_layers = 3,
     .num_attention_heads = 128,
     .q_lora_rank = 1536,
     .kv_lora_rank = 512,
     .qk_nope_head_dim = 128,
     .qk_rope_head_dim = 64,
     .v_head_dim = 128,
     .intermediate_size = 18432,
     .moe_intermediate_size = 2048,
     .n_routed_experts = 32,
     .num_experts_per_tok = 8,
     .n_group = 8,
     .topk_group = 4,
     .num_nextn_predict_layers = 0,
     .max_position_embeddings = 163840,
     .original_max_position_embeddings = 4096,
     .factor = 40},
    {.name = "glm-flash-slice",
     .architecture = "Glm4MoeLiteForCausalLM",
     .model_type = "glm4_moe_lite",
     .vocab_size = 32768,
     .hidden_size = 2048,
     .num_hidden_layers = 3,
     .num_attention_heads = 20,
     .q_lora_rank = 768,
     .kv_lora_rank = 512,
     .qk_nope_head_dim = 192,
     .qk_rope_head_dim = 64,
     .v_head_dim = 256,
     .intermediate_size = 10240,
     .moe_intermediate_size = 1536,
     .n_routed_experts = 32,
     .num_experts_per_tok = 4,
     .n_group = 1,
     .topk_group = 1,
     .num_nextn_predict_layers = 0,
     .max_position_embeddings = 202752,
     .rope_theta = 1000000,
     .routed_scaling_factor = 1.8,
     .rms_norm_eps = 1e-5},
    {.name = "kimi-slice",
     .model_type = "kimi_k2",
     .vocab_size = 32768,
     .hidden_size = 7168,
     .num_hidden_layers = 3,
     .num_attention_heads = 64,
     .q_lora_rank = 1536,
     .kv_lora_rank = 512,
     .qk_nope_head_dim = 128,
     .qk_rope_head_dim = 64,
     .v_head_dim = 128,
     .intermediate_size = 18432,
     .moe_intermediate_size = 2048,
     .n_routed_experts = 32,
     .num_experts_per_tok = 8,
     .n_group = 1,
     .topk_group = 1,
     .num_nextn_predict_layers = 0,
     .max_position_embeddings = 262144,
     .original_max_position_embeddings = 4096,
     .factor = 64,
     .beta_fast = 1,
     .rope_theta = 50000,
     .routed_scaling_factor = 2.827},
    {.name = "glm5-slice",
     .architecture = "GlmMoeDsaForCausalLM",
     .model_type = "glm_moe_dsa",
     .vocab_size = 32768,
     .hidden_size = 6144,
     .num_hidden_layers = 3,
     .num_attention_heads = 64,
     .q_lora_rank = 2048,
     .kv_lora_rank = 512,
     .qk_nope_head_dim = 192,
     .qk_rope_head_dim = 64,
     .v_head_dim = 256,
     .intermediate_size = 12288,
     .moe_intermediate_size = 2048,
     .n_routed_experts = 32,
     .num_experts_per_tok = 8,
     .n_group = 1,
     .topk_group = 1,
     .num_nextn_predict_layers = 0,
     .max_position_embeddings = 1048576,
     .rope_theta = 8000000,
     .rms_norm_eps = 1e-5,
     .index_topk = 2048},
};

const Preset* FindPreset(absl::string_view name) {
  const auto* found =
      std::find_if(std::begin(kPresets), std::end(kPresets),
                   [&](const Preset& preset) { return preset.name == name; });
  return found == std::end(kPresets) ? nullptr : found;
}

std::string ConfigJson(const SyntheticModel& model, const Preset& preset) {
  Json yarn;
  if (preset.factor > 0) {
    yarn = {{"beta_fast", preset.beta_fast},
            {"beta_slow", 1},
            {"factor", preset.factor},
            {"mscale", 1.0},
            {"mscale_all_dim", 1.0},
            {"original_max_position_embeddings",
             preset.original_max_position_embeddings},
            {"type", "yarn"}};
  }
  Json config = {
      {"_name_or_path", FormatSyntheticModel(model)},
      {"architectures", {preset.architecture}},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"bos_token_id", kSyntheticBos},
      {"eos_token_id", kSyntheticEos},
      {"first_k_dense_replace", 1},
      {"hidden_act", "silu"},
      {"hidden_size", preset.hidden_size},
      {"initializer_range", 0.02},
      {"intermediate_size", preset.intermediate_size},
      {"kv_lora_rank", preset.kv_lora_rank},
      {"max_position_embeddings", preset.max_position_embeddings},
      {"model_type", preset.model_type},
      {"moe_intermediate_size", preset.moe_intermediate_size},
      {"moe_layer_freq", 1},
      {"n_group", preset.n_group},
      {"n_routed_experts", preset.n_routed_experts},
      {"n_shared_experts", 1},
      {"norm_topk_prob", true},
      {"num_attention_heads", preset.num_attention_heads},
      {"num_experts_per_tok", preset.num_experts_per_tok},
      {"num_hidden_layers", preset.num_hidden_layers},
      {"num_key_value_heads", preset.num_attention_heads},
      {"num_nextn_predict_layers", preset.num_nextn_predict_layers},
      {"q_lora_rank", preset.q_lora_rank},
      {"qk_nope_head_dim", preset.qk_nope_head_dim},
      {"qk_rope_head_dim", preset.qk_rope_head_dim},
      {"quantization_config",
       {{"activation_scheme", "dynamic"},
        {"fmt", "e4m3"},
        {"quant_method", "fp8"},
        {"weight_block_size", {128, 128}}}},
      {"rms_norm_eps", preset.rms_norm_eps},
      {"rope_scaling", yarn},
      {"rope_theta", preset.rope_theta},
      {"routed_scaling_factor", preset.routed_scaling_factor},
      {"scoring_func", "sigmoid"},
      {"tie_word_embeddings", false},
      {"topk_group", preset.topk_group},
      {"topk_method", "noaux_tc"},
      {"torch_dtype", "bfloat16"},
      {"use_cache", true},
      {"v_head_dim", preset.v_head_dim},
      {"vocab_size", preset.vocab_size},
  };
  if (preset.index_topk > 0) config["index_topk"] = preset.index_topk;
  return config.dump(2) + "\n";
}

std::string GenerationConfigJson() {
  const Json config = {{"bos_token_id", kSyntheticBos},
                       {"eos_token_id", kSyntheticEos},
                       {"do_sample", true},
                       {"temperature", 0.6},
                       {"top_p", 0.95}};
  return config.dump(2) + "\n";
}

// The shortest text that reads back as the same number.
std::string ShortestText(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  return std::string(text, end);
}

}  // namespace

bool IsSyntheticModel(absl::string_view model) {
  return absl::StartsWith(model, kPrefix);
}

absl::StatusOr<SyntheticModel> ParseSyntheticModel(absl::string_view model) {
  const auto bad = [model](const auto&... problem) {
    return absl::InvalidArgumentError(absl::StrCat(model, ": ", problem...));
  };
  absl::string_view rest = model;
  if (!absl::ConsumePrefix(&rest, kPrefix)) {
    return bad("want ", kPrefix, "PRESET[,seed=S][,zipf=A]");
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(rest, ',');
  SyntheticModel result;
  result.preset = std::string(parts[0]);
  if (FindPreset(parts[0]) == nullptr) {
    return bad("no such preset, want ",
               absl::StrJoin(SyntheticPresets(), " or "));
  }
  bool has_seed = false;
  bool has_zipf = false;
  for (size_t i = 1; i < parts.size(); ++i) {
    absl::string_view value = parts[i];
    if (absl::ConsumePrefix(&value, "seed=")) {
      if (std::exchange(has_seed, true)) return bad("seed is given twice");
      if (!absl::SimpleAtoi(value, &result.seed)) {
        return bad("seed ", value, ", want a whole number from 0 to 2^64 - 1");
      }
    } else if (absl::ConsumePrefix(&value, "zipf=")) {
      if (std::exchange(has_zipf, true)) return bad("zipf is given twice");
      if (!absl::SimpleAtod(value, &result.zipf) ||
          !(result.zipf >= 0 && result.zipf <= kMaxZipf)) {
        return bad("zipf ", value, ", want a number from 0 to ", kMaxZipf);
      }
      if (result.zipf == 0) result.zipf = 0;  // -0 is no other model.
    } else {
      return bad("\"", value, "\", want seed=S or zipf=A");
    }
  }
  return result;
}

std::string FormatSyntheticModel(const SyntheticModel& model) {
  std::string name = absl::StrCat(kPrefix, model.preset);
  if (model.seed != 0) absl::StrAppend(&name, ",seed=", model.seed);
  if (model.zipf != 0) {
    absl::StrAppend(&name, ",zipf=", ShortestText(model.zipf));
  }
  return name;
}

std::vector<std::string> SyntheticPresets() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

std::vector<std::string> SyntheticFileNames() {
  return {"tokenizer.json", "tokenizer_config.json", "generation_config.json",
          "config.json"};
}

absl::StatusOr<std::string> SyntheticFile(const SyntheticModel& model,
                                          absl::string_view name) {
  const Preset* preset = FindPreset(model.preset);
  if (preset == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(kPrefix, model.preset, ": no such preset"));
  }
  if (name == "config.json") return ConfigJson(model, *preset);
  if (name == "generation_config.json") return GenerationConfigJson();
  if (name == "tokenizer.json") {
    return SyntheticTokenizerJson(preset->vocab_size);
  }
  if (name == "tokenizer_config.json") {
    return SyntheticTokenizerConfigJson(preset->max_position_embeddings);
  }
  return absl::NotFoundError(
      absl::StrCat(FormatSyntheticModel(model), "/", name, ": no such file"));
}

}  // namespace ringfleet::cluster
