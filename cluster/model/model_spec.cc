// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/model_spec.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/json_depth.h"
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
constexpr uint32_t kMaxTokenId = kMaxWidth;

// Enough of a value to recognise it in a message.
std::string Show(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true,
                                nlohmann::json::error_handler_t::replace);
  if (text.size() > 80) text = absl::StrCat(text.substr(0, 77), "...");
  return text;
}

// Takes typed members out of a JSON object and keeps the first error, so that
// a parser reads like the list of its fields. A null member counts as absent.
class Fields {
 public:
  Fields(const nlohmann::json& object, std::string prefix)
      : object_(object), prefix_(std::move(prefix)) {}

  const absl::Status& status() const { return status_; }

  void Fail(absl::string_view field, absl::string_view problem) {
    if (!status_.ok()) return;
    status_ =
        absl::InvalidArgumentError(absl::StrCat(prefix_, field, ": ", problem));
  }

  // Null when absent.
  const nlohmann::json* Get(const char* field) const {
    const auto it = object_.find(field);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  int Int(const char* field, int low, int high, std::optional<int> fallback) {
    const std::optional<double> value =
        Checked(field, low, high, /*integer=*/true, fallback);
    return value.has_value() ? static_cast<int>(*value) : low;
  }

  double Number(const char* field, double low, double high,
                std::optional<double> fallback) {
    return Checked(field, low, high, /*integer=*/false, fallback).value_or(low);
  }

  bool Bool(const char* field, bool fallback) {
    const nlohmann::json* value = Get(field);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) {
      Fail(field, absl::StrCat(Show(*value), ", want true or false"));
      return fallback;
    }
    return value->get<bool>();
  }

  std::string String(const char* field, absl::string_view fallback) {
    const nlohmann::json* value = Get(field);
    if (value == nullptr) return std::string(fallback);
    if (!value->is_string()) {
      Fail(field, absl::StrCat(Show(*value), ", want a string"));
      return std::string(fallback);
    }
    return value->get<std::string>();
  }

  // A token id or a list of them.
  std::vector<uint32_t> TokenIds(const char* field, uint32_t vocab_size,
                                 std::vector<uint32_t> fallback) {
    const nlohmann::json* value = Get(field);
    if (value == nullptr) return fallback;
    std::vector<uint32_t> ids;
    const auto take = [&](const nlohmann::json& id) {
      if (id.is_number_unsigned() && id.get<uint64_t>() < vocab_size) {
        ids.push_back(id.get<uint32_t>());
        return;
      }
      Fail(field, absl::StrCat(Show(id), ", want a token id in 0 to ",
                               vocab_size - 1));
    };
    if (value->is_array()) {
      for (const nlohmann::json& id : *value) take(id);
    } else {
      take(*value);
    }
    return ids;
  }

 private:
  std::optional<double> Checked(const char* field, double low, double high,
                                bool integer, std::optional<double> fallback) {
    const nlohmann::json* value = Get(field);
    const auto border = [&](double x) {
      return integer ? absl::StrCat(static_cast<int64_t>(x)) : Show(x);
    };
    const std::string want =
        absl::StrCat(", want ", integer ? "an integer" : "a number", " in ",
                     border(low), " to ", border(high));
    if (value == nullptr) {
      if (!fallback.has_value()) Fail(field, absl::StrCat("missing", want));
      return fallback;
    }
    if (value->is_number()) {
      const double number = value->get<double>();
      if (number >= low && number <= high &&
          (!integer || number == std::floor(number))) {
        return number;
      }
    }
    Fail(field, absl::StrCat(Show(*value), want));
    return std::nullopt;
  }

  const nlohmann::json& object_;
  const std::string prefix_;
  absl::Status status_;
};

absl::StatusOr<nlohmann::json> ParseObject(absl::string_view json,
                                           absl::string_view file) {
  if (json.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        file, ": ", json.size(), " bytes, want at most ", kMaxConfigBytes));
  }
  if (json.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(file, " is empty"));
  }
  const absl::Status depth = CheckJsonDepth(json);
  if (!depth.ok()) return Annotate(depth, file);
  try {
    nlohmann::json value = nlohmann::json::parse(json.begin(), json.end());
    if (!value.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": ", Show(value), ", want a JSON object"));
    }
    return value;
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", e.what()));
  }
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
          absl::StrCat("config.json: architectures: ", Show(*list),
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

absl::Status ParseRopeScaling(const nlohmann::json& object, YarnSpec* yarn) {
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "config.json: rope_scaling: ", Show(object), ", want an object"));
  }
  Fields fields(object, "config.json: rope_scaling.");
  const std::string type =
      fields.String("rope_type", fields.String("type", ""));
  RF_RETURN_IF_ERROR(fields.status());
  if (type != "yarn") {
    return absl::InvalidArgumentError(absl::StrCat(
        "config.json: rope_scaling.type: \"", type, "\", want \"yarn\""));
  }
  yarn->factor = fields.Number("factor", 1, 1e6, std::nullopt);
  yarn->original_max_position_embeddings =
      fields.Number("original_max_position_embeddings", 1, kMaxPositions, 4096);
  yarn->beta_fast = fields.Number("beta_fast", 1e-6, 1e6, 32);
  yarn->beta_slow = fields.Number("beta_slow", 1e-6, 1e6, 1);
  yarn->mscale = fields.Number("mscale", 0, 100, 1);
  yarn->mscale_all_dim = fields.Number("mscale_all_dim", 0, 100, 0);
  if (yarn->beta_fast < yarn->beta_slow) {
    fields.Fail("beta_fast",
                absl::StrCat(yarn->beta_fast, ", want at least beta_slow, ",
                             yarn->beta_slow));
  }
  return fields.status();
}

absl::Status ParseQuantization(const nlohmann::json& object, ModelSpec* spec) {
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: quantization_config: ", Show(object),
                     ", want an object"));
  }
  Fields fields(object, "config.json: quantization_config.");
  const std::string method = fields.String("quant_method", "");
  const std::string format = fields.String("fmt", "e4m3");
  if (method != "fp8") {
    fields.Fail("quant_method", absl::StrCat("\"", method, "\", want \"fp8\""));
  }
  if (format != "e4m3") {
    fields.Fail("fmt", absl::StrCat("\"", format, "\", want \"e4m3\""));
  }
  RF_RETURN_IF_ERROR(fields.status());
  const nlohmann::json* block = fields.Get("weight_block_size");
  const auto size_ok = [](const nlohmann::json& size) {
    return size.is_number_unsigned() && size.get<uint64_t>() >= 1 &&
           size.get<uint64_t>() <= kMaxRank;
  };
  if (block == nullptr || !block->is_array() || block->size() != 2 ||
      !size_ok((*block)[0]) || !size_ok((*block)[1])) {
    fields.Fail(
        "weight_block_size",
        absl::StrCat(block == nullptr ? "missing" : Show(*block),
                     ", want [rows, columns], each in 1 to ", kMaxRank));
    return fields.status();
  }
  spec->weight_block_rows = (*block)[0].get<int>();
  spec->weight_block_columns = (*block)[1].get<int>();
  return absl::OkStatus();
}

void ParseExperts(Fields& fields, bool v3, ModelSpec* spec) {
  spec->n_routed_experts = fields.Int("n_routed_experts", 0, kMaxExperts, 0);
  spec->n_shared_experts = fields.Int("n_shared_experts", 0, 1024, v3 ? 1 : 0);
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

void ParseAttention(Fields& fields, ModelSpec* spec) {
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
  if (fields.Bool("attention_bias", false)) {
    fields.Fail("attention_bias", "true, want false");
  }
  if (!fields.Bool("rope_interleave", true)) {
    fields.Fail("rope_interleave", "false, want true");
  }
}

}  // namespace

double ModelSpec::SoftmaxScale() const {
  double scale = 1 / std::sqrt(static_cast<double>(qk_head_dim()));
  if (rope_scaling.has_value() && rope_scaling->mscale_all_dim != 0 &&
      rope_scaling->factor > 1) {
    const double m =
        0.1 * rope_scaling->mscale_all_dim * std::log(rope_scaling->factor) + 1;
    scale *= m * m;
  }
  return scale;
}

absl::StatusOr<ModelSpec> ParseModelSpec(absl::string_view json) {
  RF_ASSIGN_OR_RETURN(const nlohmann::json config,
                      ParseObject(json, "config.json"));
  ModelSpec spec;
  RF_ASSIGN_OR_RETURN(spec.architecture, Architecture(config));
  const bool v3 = spec.architecture == "DeepseekV3ForCausalLM";
  Fields fields(config, "config.json: ");
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
  spec.rope_theta = fields.Number("rope_theta", 1 + 1e-6, 1e12, 10000);
  spec.max_position_embeddings =
      fields.Int("max_position_embeddings", 1, kMaxPositions, v3 ? 4096 : 2048);
  spec.tie_word_embeddings = fields.Bool("tie_word_embeddings", false);
  spec.num_nextn_predict_layers =
      fields.Int("num_nextn_predict_layers", 0, 64, v3 ? 1 : 0);
  if (const std::string act = fields.String("hidden_act", "silu");
      act != "silu") {
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

  if (const nlohmann::json* scaling = fields.Get("rope_scaling");
      scaling != nullptr) {
    RF_RETURN_IF_ERROR(
        ParseRopeScaling(*scaling, &spec.rope_scaling.emplace()));
  }
  if (const nlohmann::json* quantization = fields.Get("quantization_config");
      quantization != nullptr) {
    RF_RETURN_IF_ERROR(ParseQuantization(*quantization, &spec));
  }
  return spec;
}

absl::StatusOr<GenerationDefaults> ParseGenerationDefaults(
    absl::string_view json) {
  RF_ASSIGN_OR_RETURN(const nlohmann::json config,
                      ParseObject(json, "generation_config.json"));
  GenerationDefaults defaults;
  Fields fields(config, "generation_config.json: ");
  defaults.temperature = fields.Number("temperature", 0, 1e6, 0);
  defaults.top_k = fields.Int("top_k", 0, kMaxWidth, 0);
  defaults.top_p = fields.Number("top_p", 0, 1, 1);
  defaults.min_p = fields.Number("min_p", 0, 1, 0);
  defaults.eos_token_ids = fields.TokenIds("eos_token_id", kMaxTokenId, {});
  if (!fields.Bool("do_sample", false)) defaults.temperature = 0;
  RF_RETURN_IF_ERROR(fields.status());
  return defaults;
}

}  // namespace ringfleet::cluster
