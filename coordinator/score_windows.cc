// SPDX-License-Identifier: Apache-2.0
#include "coordinator/score_windows.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator {

absl::StatusOr<ScoreWindow> NextScoreWindow(size_t ids, size_t begin,
                                            size_t context,
                                            const v1::ScoreOptions& options) {
  if (ids > context && (options.hidden() || options.mtp())) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.hidden() ? "hidden" : "mtp", ": text of ", ids,
                     " tokens, want at most ", context,
                     " (the context): only one window has them"));
  }
  if (ids > context && context == 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("text of ", ids,
                     " tokens, want 1: a context of 1 position conditions "
                     "nothing"));
  }
  return ScoreWindow{begin, std::min(begin + context, ids)};
}

void AppendScore(const v1::ScoreResult& part, v1::ScoreResult* total) {
  total->mutable_logprobs()->MergeFrom(part.logprobs());
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

}  // namespace ringfleet::coordinator
