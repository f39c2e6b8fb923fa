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
namespace {

// Most entries of a list that each draw reads.
constexpr int kMaxLogitRules = 1024;
constexpr uint32_t kMaxTopLogprobs = 128;

}  // namespace

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

absl::Status ServedModel::CheckTextLength(absl::string_view text,
                                          uint64_t most) const {
  RF_ASSIGN_OR_RETURN(const Tokenizer* const tokenizer, this->tokenizer());
  const auto longest = tokenizer->most_bytes_of_token();
  if (longest.has_value() && text.size() / *longest > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt: ", text.size(), " bytes of text, want at most ",
        most * *longest, ": ", most, " tokens of up to ", *longest, " bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint32_t>> ServedModel::PromptIds(
    const v1::Prompt& prompt, uint64_t most) const {
  std::vector<uint32_t> ids;
  if (prompt.has_text()) {
    RF_RETURN_IF_ERROR(CheckTextLength(prompt.text(), most));
    RF_ASSIGN_OR_RETURN(const Tokenizer* const tokenizer, this->tokenizer());
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
  RF_RETURN_IF_ERROR(SetLogitRules(request, &sampling));
  sampling.set_sample(request.sample());
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

absl::Status ServedModel::SetLogitRules(const v1::GenerateRequest& request,
                                        v1::SamplingParams* sampling) const {
  const float repetition =
      request.has_repetition_penalty()
          ? request.repetition_penalty()
          : static_cast<float>(defaults_.repetition_penalty);
  if (!std::isfinite(repetition) || repetition <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling: repetition_penalty ", repetition,
                     ", want more than 0 (1: off)"));
  }
  sampling->set_repetition_penalty(repetition);
  // The ranges of OpenAI's API.
  for (const auto& [name, penalty] :
       {std::make_pair("presence_penalty", request.presence_penalty()),
        std::make_pair("frequency_penalty", request.frequency_penalty())}) {
    if (penalty >= -2 && penalty <= 2) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("sampling: ", name, " ", penalty, ", want -2 to 2"));
  }
  sampling->set_presence_penalty(request.presence_penalty());
  sampling->set_frequency_penalty(request.frequency_penalty());
  if (request.logit_bias_size() > kMaxLogitRules) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling: logit_bias of ", request.logit_bias_size(),
                     " ids, want at most ", kMaxLogitRules));
  }
  for (const v1::LogitBias& bias : request.logit_bias()) {
    if (bias.id() >= static_cast<uint32_t>(spec_.vocab_size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampling: logit_bias of id ", bias.id(),
                       ", want less than ", spec_.vocab_size, " (vocab_size)"));
    }
    if (!(bias.bias() >= -100 && bias.bias() <= 100)) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampling: logit_bias ", bias.bias(), " of id ",
                       bias.id(), ", want -100 to 100"));
    }
  }
  *sampling->mutable_logit_bias() = request.logit_bias();
  sampling->set_min_tokens(
      request.has_min_tokens()
          ? request.min_tokens()
          : static_cast<uint32_t>(defaults_.min_new_tokens));
  if (request.bad_words_size() > kMaxLogitRules) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling: ", request.bad_words_size(),
                     " bad words, want at most ", kMaxLogitRules));
  }
  for (const std::string& word : request.bad_words()) {
    if (word.empty()) {
      return absl::InvalidArgumentError("sampling: an empty bad word");
    }
    RF_ASSIGN_OR_RETURN(const Tokenizer* const tokenizer, this->tokenizer());
    // A word begins a text, or follows a space.
    std::vector<uint32_t> last;
    for (const std::string& text : {word, absl::StrCat(" ", word)}) {
      RF_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids,
                          tokenizer->Encode(text));
      if (ids.empty() || ids == last) continue;
      sampling->add_bad_words()->mutable_ids()->Add(ids.begin(), ids.end());
      last = ids;
    }
  }
  return absl::OkStatus();
}

absl::Status ServedModel::CheckLogprobs(
    const v1::GenerateRequest& request) const {
  for (const auto& [name, count] :
       {std::make_pair("top_logprobs", request.top_logprobs()),
        std::make_pair("prompt_logprobs", request.prompt_logprobs())}) {
    if (count <= kMaxTopLogprobs) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " ", count, ", want at most ", kMaxTopLogprobs));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint32_t>> ServedModel::StopIdsOf(
    const v1::GenerateRequest& request) const {
  std::vector<uint32_t> ids;
  if (!request.ignore_eos()) ids = StopIds();
  if (request.stop_token_ids_size() > kMaxLogitRules) {
    return absl::InvalidArgumentError(
        absl::StrCat("stop_token_ids: ", request.stop_token_ids_size(),
                     " ids, want at most ", kMaxLogitRules));
  }
  for (const uint32_t id : request.stop_token_ids()) {
    if (id >= static_cast<uint32_t>(spec_.vocab_size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("stop_token_ids: id ", id, ", want less than ",
                       spec_.vocab_size, " (vocab_size)"));
    }
    ids.push_back(id);
  }
  return ids;
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
