// SPDX-License-Identifier: Apache-2.0
#include "worker/execution/logit_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::worker {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
// Bounds the work of a draw.
constexpr int kMaxEntries = 65536;

bool IsRepetitionPenalty(float penalty) { return penalty != 0 && penalty != 1; }

absl::Status CheckNumber(absl::string_view name, float value, float least) {
  if (std::isfinite(value) && value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " ", value, ", want a number", least == 0 ? " of 0 or more" : ""));
}

}  // namespace

absl::Status LogitRules::Check(const v1::Admission& admission,
                               uint32_t vocab_size) {
  const v1::SamplingParams& sampling = admission.sampling();
  const float any = std::numeric_limits<float>::lowest();
  RF_RETURN_IF_ERROR(CheckNumber("repetition_penalty",
                                 sampling.repetition_penalty(), /*least=*/0));
  RF_RETURN_IF_ERROR(
      CheckNumber("presence_penalty", sampling.presence_penalty(), any));
  RF_RETURN_IF_ERROR(
      CheckNumber("frequency_penalty", sampling.frequency_penalty(), any));
  if (sampling.logit_bias_size() > kMaxEntries ||
      sampling.bad_words_size() > kMaxEntries) {
    return absl::InvalidArgumentError(absl::StrCat(
        sampling.logit_bias_size(), " logit biases and ",
        sampling.bad_words_size(), " bad words, want at most ", kMaxEntries));
  }
  for (const v1::LogitBias& bias : sampling.logit_bias()) {
    if (bias.id() >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "logit_bias of id ", bias.id(), ", want below ", vocab_size));
    }
    RF_RETURN_IF_ERROR(CheckNumber("logit_bias", bias.bias(), any));
  }
  for (const v1::TokenWord& word : sampling.bad_words()) {
    if (word.ids().empty()) {
      return absl::InvalidArgumentError("bad_words: an empty word");
    }
    for (const uint32_t id : word.ids()) {
      if (id < vocab_size) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("bad_words: id ", id, ", want below ", vocab_size));
    }
  }
  if (admission.top_logprobs() > vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_logprobs ", admission.top_logprobs(),
                     ", want at most ", vocab_size));
  }
  return absl::OkStatus();
}

LogitRules::LogitRules(const v1::Admission& admission)
    : sampling_(admission.sampling()) {
  if (sampling_.min_tokens() > 0) {
    stop_ids_.assign(admission.stop_ids().begin(), admission.stop_ids().end());
  }
  if (IsRepetitionPenalty(sampling_.repetition_penalty())) {
    for (const uint32_t id : admission.prompt_ids()) {
      uses_[id].in_prompt = true;
    }
  }
  for (const uint32_t id : admission.committed_ids()) Add(id);
}

bool LogitRules::penalises() const {
  return IsRepetitionPenalty(sampling_.repetition_penalty()) ||
         sampling_.presence_penalty() != 0 ||
         sampling_.frequency_penalty() != 0;
}

void LogitRules::Add(uint32_t id) {
  ++drawn_n_;
  if (penalises()) ++uses_[id].drawn;
  if (!sampling_.bad_words().empty()) drawn_.push_back(id);
}

bool LogitRules::active() const {
  return drawn_n_ < sampling_.min_tokens() || penalises() ||
         !sampling_.logit_bias().empty() || !sampling_.bad_words().empty();
}

void LogitRules::Apply(cluster::Range vocab, absl::Span<float> logits) const {
  const auto logit = [&](uint32_t id) -> float* {
    const int64_t index = int64_t{id} - vocab.begin;
    return index < 0 || index >= static_cast<int64_t>(logits.size())
               ? nullptr
               : &logits[static_cast<size_t>(index)];
  };
  const auto forbid = [&](uint32_t id) {
    if (float* const value = logit(id)) *value = kNever;
  };
  for (const v1::TokenWord& word : sampling_.bad_words()) {
    const auto before = static_cast<size_t>(word.ids_size() - 1);
    if (before > drawn_.size()) continue;
    if (std::equal(word.ids().begin(), word.ids().end() - 1,
                   drawn_.end() - static_cast<ptrdiff_t>(before))) {
      forbid(word.ids(word.ids_size() - 1));
    }
  }
  if (drawn_n_ < sampling_.min_tokens()) {
    for (const uint32_t id : stop_ids_) forbid(id);
  }
  for (const v1::LogitBias& bias : sampling_.logit_bias()) {
    if (float* const value = logit(bias.id())) *value += bias.bias();
  }
  const float repetition = sampling_.repetition_penalty();
  for (const auto& [id, uses] : uses_) {
    float* const value = logit(id);
    if (value == nullptr) continue;
    if (IsRepetitionPenalty(repetition)) {
      *value = *value > 0 ? *value / repetition : *value * repetition;
    }
    if (uses.drawn == 0) continue;
    *value -= sampling_.presence_penalty();
    *value -= sampling_.frequency_penalty() * static_cast<float>(uses.drawn);
  }
}

}  // namespace ringfleet::worker
