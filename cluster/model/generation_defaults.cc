// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/generation_defaults.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cluster/model/config_fields.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {
namespace {

constexpr int kMaxTopK = 1 << 24;
constexpr int kMaxTokens = 1 << 24;
constexpr uint32_t kMaxStopId = 1 << 24;

// Members that do not change what is generated here.
constexpr absl::string_view kGenerationMembersWithoutEffect[] = {
    "_from_model_config",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_lookbehind",
    "bos_token_id",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "decoder_start_token_id",
    "disable_compile",
    "is_assistant",
    "low_memory",
    "max_matching_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "pad_token_id",
    "prefill_chunk_size",
    "prompt_lookup_num_tokens",
    "return_dict_in_generate",
    "target_lookbehind",
    "transformers_version",
    "trust_remote_code",
    "use_cache",
};

// Members that multiply, divide or count from 1: that value means "off". For
// other numbers 0 and -1 do.
constexpr absl::string_view kOffAtOne[] = {
    "encoder_repetition_penalty",
    "guidance_scale",
    "length_penalty",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "typical_p",
};

bool IsOff(absl::string_view name, const nlohmann::json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  if (!value.is_number()) return value.empty();
  const double number = value.get<double>();
  if (std::find(std::begin(kOffAtOne), std::end(kOffAtOne), name) !=
      std::end(kOffAtOne)) {
    return number == 1;
  }
  if (absl::EndsWith(name, "_token_id")) return number == -1;
  return number == 0 || number == -1;
}

// Returns true if the member is -1, which names no token.
bool IsNoToken(ConfigFields& fields, const char* field) {
  const nlohmann::json* value = fields.Get(field);
  return value != nullptr && value->is_number_integer() && *value == -1;
}

}  // namespace

absl::StatusOr<GenerationDefaults> ParseGenerationDefaults(
    absl::string_view json) {
  RF_ASSIGN_OR_RETURN(const nlohmann::json config,
                      ParseConfigObject(json, "generation_config.json"));
  GenerationDefaults defaults;
  ConfigFields fields(config, "generation_config.json: ");
  defaults.temperature = fields.Number("temperature", 0, 1e6, 1);
  defaults.top_k = std::max(0, fields.Int("top_k", -1, kMaxTopK, 0));
  defaults.top_p = fields.Number("top_p", 0, 1, 1);
  defaults.min_p = fields.Number("min_p", 0, 1, 0);
  defaults.repetition_penalty = fields.Number("repetition_penalty", -1, 1e6, 1);
  if (defaults.repetition_penalty <= 0) defaults.repetition_penalty = 1;
  defaults.min_new_tokens =
      std::max(0, fields.Int("min_new_tokens", -1, kMaxTokens, 0));
  if (!IsNoToken(fields, "eos_token_id")) {
    defaults.eos_token_ids = fields.TokenIds("eos_token_id", kMaxStopId, {});
  }
  if (!fields.Bool("do_sample", false)) defaults.temperature = 0;
  RF_RETURN_IF_ERROR(fields.status());
  if (defaults.top_p == 0) {  // A filter leaves at least the likeliest token.
    defaults.top_p = 1;
    defaults.top_k = 1;
  }
  fields.Ignore(kGenerationMembersWithoutEffect);
  for (const std::string& name : fields.Unread()) {
    if (IsOff(name, config[name])) continue;
    defaults.ignored.push_back(
        absl::StrCat(name, " ", ShowConfigValue(config[name])));
  }
  return defaults;
}

}  // namespace ringfleet::cluster
