// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/score_windows.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator {

absl::StatusOr<ScoreWindow> NextScoreWindow(size_t ids, size_t begin,
                                            size_t context,
                                            const v1::ScoreOptions& options) {
  if (ids > context && (options.hidden() || options.mtp())) {
    return absl::InvalidArgumentError(
        absl::StrCat("score: ", options.hidden() ? "hidden" : "mtp",
                     ": text of ", ids, " tokens, want at most ", context,
                     " (the context): only one window has them"));
  }
  if (ids > context && context == 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("score: text of ", ids,
                     " tokens, want 1: a context of 1 position conditions "
                     "nothing"));
  }
  return ScoreWindow{begin, std::min(begin + context, ids)};
}

void AppendScore(const v1::ScoreResult& part, v1::ScoreResult* total) {
  total->mutable_logprobs()->MergeFrom(part.logprobs());
  total->mutable_prompt_top()->MergeFrom(part.prompt_top());
  total->mutable_mtp_top_ids()->MergeFrom(part.mtp_top_ids());
  total->mutable_mtp_top_logprobs()->MergeFrom(part.mtp_top_logprobs());
  if (!part.top_ids().empty()) {
    *total->mutable_top_ids() = part.top_ids();
    *total->mutable_top_logprobs() = part.top_logprobs();
  }
  if (!part.hidden_states().empty()) {
    *total->mutable_hidden_states() = part.hidden_states();
  }
  total->set_kl_sum(total->kl_sum() + part.kl_sum());
  total->set_top1_agreements(total->top1_agreements() + part.top1_agreements());
  total->set_compared(total->compared() + part.compared());
}

std::vector<v1::ScoreEvent::Result> SplitScore(absl::Span<const uint32_t> ids,
                                               v1::ScoreResult score) {
  const auto logprobs = absl::MakeConstSpan(score.logprobs());
  std::vector<v1::ScoreEvent::Result> parts;
  for (size_t begin = 0; begin < ids.size(); begin += kScorePartIds) {
    v1::ScoreEvent::Result& part = parts.emplace_back();
    const auto part_ids = ids.subspan(begin, kScorePartIds);
    part.mutable_ids()->Add(part_ids.begin(), part_ids.end());
    // There is none of the first id, so the last part may have one less.
    if (begin >= logprobs.size()) continue;
    const auto part_logprobs = logprobs.subspan(begin, kScorePartIds);
    part.mutable_score()->mutable_logprobs()->Add(part_logprobs.begin(),
                                                  part_logprobs.end());
  }
  score.clear_logprobs();
  parts.back().mutable_score()->MergeFrom(score);
  return parts;
}

}  // namespace ringfleet::coordinator
