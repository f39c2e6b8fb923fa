// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/served_model.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/process/log.h"
#include "cluster/process/status_macros.h"
#include "coordinator/scheduling/request.h"

namespace ringfleet::coordinator {

absl::StatusOr<std::unique_ptr<ServedModel>> ServedModel::Load(
    const std::string& model_dir) {
  auto model = std::unique_ptr<ServedModel>(new ServedModel);
  RF_ASSIGN_OR_RETURN(model->spec_, cluster::LoadModelSpec(model_dir));
  RF_ASSIGN_OR_RETURN(model->defaults_,
                      cluster::LoadGenerationDefaults(model_dir));
  for (const std::string& setting : model->defaults_.ignored) {
    RF_LOG(kWarning, "generation_config.json: ", setting,
           " is not supported, ignored");
  }
  auto tokenizer = Tokenizer::Load(model_dir);
  if (tokenizer.ok()) {
    model->tokenizer_ = *std::move(tokenizer);
  } else {
    model->tokenizer_error_ = tokenizer.status();
    RF_LOG(kWarning,
           "only ids are served, no text: ", tokenizer.status().message());
  }
  return model;
}

absl::StatusOr<const Tokenizer*> ServedModel::tokenizer() const {
  if (tokenizer_ != nullptr) return tokenizer_.get();
  return absl::Status(
      tokenizer_error_.code(),
      absl::StrCat("tokenizer: none is usable, want ids instead of text: ",
                   tokenizer_error_.message()));
}

absl::StatusOr<std::vector<uint32_t>> ServedModel::PromptIds(
    const v1::Prompt& prompt, uint64_t most) const {
  std::vector<uint32_t> ids;
  if (prompt.has_text()) {
    RF_ASSIGN_OR_RETURN(const Tokenizer* const tokenizer, this->tokenizer());
    const auto longest = tokenizer->most_bytes_of_token();
    if (longest.has_value() && prompt.text().size() / *longest > most) {
      return absl::InvalidArgumentError(
          absl::StrCat("prompt: ", prompt.text().size(),
                       " bytes of text, want at most ", most * *longest, ": ",
                       most, " tokens of up to ", *longest, " bytes"));
    }
    RF_ASSIGN_OR_RETURN(ids, tokenizer->EncodePrompt(prompt.text()));
  } else {
    ids.assign(prompt.ids().ids().begin(), prompt.ids().ids().end());
  }
  if (ids.empty())
    return absl::InvalidArgumentError("prompt: empty, want at least one token");
  const uint32_t vocab_size = spec_.vocab_size;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("prompt: id ", ids[i], " at index ", i,
                       ", want less than ", vocab_size, " (vocab_size)"));
    }
  }
  return ids;
}

absl::StatusOr<v1::SamplingParams> ServedModel::Sampling(
    const v1::GenerateRequest& request) const {
  v1::SamplingParams sampling;
  const float temperature = request.has_temperature()
                                ? request.temperature()
                                : static_cast<float>(defaults_.temperature);
  const float top_p = request.has_top_p() ? request.top_p()
                                          : static_cast<float>(defaults_.top_p);
  const float min_p = request.has_min_p() ? request.min_p()
                                          : static_cast<float>(defaults_.min_p);
  if (!std::isfinite(temperature) || temperature < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sampling: temperature ", temperature, ", want 0 or more"));
  }
  if (!(top_p > 0 && top_p <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sampling: top_p ", top_p, ", want more than 0 and at most 1"));
  }
  if (!(min_p >= 0 && min_p <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling: min_p ", min_p, ", want 0 to 1"));
  }
  if (request.has_max_tokens() && request.max_tokens() < -1) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling: max_tokens ", request.max_tokens(),
                     ", want -1 (no limit) or more"));
  }
  sampling.set_temperature(temperature);
  sampling.set_top_p(top_p);
  sampling.set_min_p(min_p);
  sampling.set_top_k(request.has_top_k()
                         ? request.top_k()
                         : static_cast<uint32_t>(defaults_.top_k));
  if (request.has_seed()) {
    sampling.set_seed(request.seed());
  } else {
    std::random_device random;
    sampling.set_seed(uint64_t{random()} << 32 | random());
  }
  return sampling;
}

std::vector<uint32_t> ServedModel::StopIds() const {
  if (!defaults_.eos_token_ids.empty()) return defaults_.eos_token_ids;
  if (!spec_.eos_token_ids.empty()) return spec_.eos_token_ids;
  if (tokenizer_ != nullptr && tokenizer_->eos_id().has_value()) {
    return {*tokenizer_->eos_id()};
  }
  return {};
}

absl::StatusOr<uint32_t> ServedModel::UsableVocab() const {
  RF_ASSIGN_OR_RETURN(const Tokenizer* const tokenizer, this->tokenizer());
  return std::min<uint32_t>(tokenizer->id_limit(), spec_.vocab_size);
}

absl::Status ServedModel::CheckScore(const v1::ScoreOptions& options) const {
  if (options.top() > static_cast<uint32_t>(spec_.vocab_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("score: top ", options.top(), ", want at most ",
                     spec_.vocab_size, " (vocab_size)"));
  }
  if (options.mtp() && spec_.num_nextn_predict_layers == 0) {
    return absl::InvalidArgumentError(
        "score: mtp: the model has no multi-token prediction layer "
        "(num_nextn_predict_layers 0)");
  }
  return absl::OkStatus();
}

uint32_t TokenLimit(const v1::GenerateRequest& request) {
  if (!request.has_max_tokens() || request.max_tokens() < 0) {
    return kUnlimitedTokens;
  }
  return static_cast<uint32_t>(
      std::min(request.max_tokens(), int64_t{kUnlimitedTokens}));
}

}  // namespace ringfleet::coordinator
