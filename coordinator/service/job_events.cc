// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/job_events.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/scheduling/score_windows.h"

namespace ringfleet::coordinator {
namespace {

int64_t UnixMs(absl::Time time) {
  return time == absl::InfiniteFuture() ? 0 : absl::ToUnixMillis(time);
}

}  // namespace

std::optional<std::string> WaitingNotes::Next(const JobProgress& progress) {
  if (progress.waits_for == told_) return std::nullopt;
  told_ = progress.waits_for;
  return told_;
}

std::variant<std::monostate, v1::GenerateEvent, absl::Status>
GenerateEvents::Next(const Job& job) {
  v1::GenerateEvent event;
  if (!accepted_) {
    const std::optional<absl::Status> stored = job.stored();
    if (!stored.has_value()) return std::monostate();
    if (!stored->ok()) return *stored;
    accepted_ = true;
    text_.emplace(job.text_rules());
    v1::GenerateEvent::Accepted* accepted = event.mutable_accepted();
    const Request& request = job.request();
    accepted->set_id(job.id());
    accepted->mutable_prompt_ids()->Add(request.prompt_ids.begin(),
                                        request.prompt_ids.end());
    *accepted->mutable_sampling() = request.sampling;
    return event;
  }
  if (finished_) return absl::OkStatus();
  // Read before the tokens: an end that is seen has all of them.
  const JobProgress progress = job.progress();
  if (told_ == tokens_.size()) {
    first_ += tokens_.size();
    tokens_ = job.TokensFrom(first_);
    told_ = 0;
  }
  if (!prompt_told_ && job.request().score.has_value() &&
      (!tokens_.empty() || (progress.has_ended() && progress.error.ok()))) {
    prompt_told_ = true;
    v1::ScoreResult score = job.score();
    v1::GenerateEvent::PromptScore* prompt = event.mutable_prompt();
    prompt->mutable_logprobs()->Swap(score.mutable_logprobs());
    prompt->mutable_top()->Swap(score.mutable_prompt_top());
    return event;
  }
  if (told_ < tokens_.size()) {
    const DrawnToken& token = tokens_[told_++];
    event.mutable_token()->set_id(token.id);
    event.mutable_token()->set_logprob(token.logprob);
    AnswerPiece piece = text_->Add(token.id);
    event.mutable_token()->set_text(std::move(piece.text));
    event.mutable_token()->set_reasoning(std::move(piece.reasoning));
    for (const DrawnToken::Likely& likely : token.top) {
      event.mutable_token()->mutable_top()->add_ids(likely.id);
      event.mutable_token()->mutable_top()->add_logprobs(likely.logprob);
    }
    return event;
  }
  if (!progress.error.ok()) return progress.error;
  if (progress.has_ended()) {
    finished_ = true;
    v1::GenerateEvent::Finished* finished = event.mutable_finished();
    finished->set_reason(progress.reason);
    if (!text_->stop().has_value()) {
      AnswerPiece rest = text_->Finish();
      finished->set_text(std::move(rest.text));
      finished->set_reasoning(std::move(rest.reasoning));
    }
    *finished->mutable_timings() =
        TimingsOf(progress.timings, fleet_.load_ms());
    return event;
  }
  if (auto reason = waiting_.Next(progress); reason.has_value()) {
    event.mutable_waiting()->set_reason(*std::move(reason));
    return event;
  }
  return std::monostate();
}

std::variant<std::monostate, v1::ScoreEvent, absl::Status> ScoreEvents::Next(
    const Job& job) {
  v1::ScoreEvent event;
  const JobProgress progress = job.progress();
  if (!progress.error.ok()) return progress.error;
  const std::vector<uint32_t>& ids = job.request().prompt_ids;
  if (progress.has_ended()) {
    if (!split_) {
      split_ = true;
      v1::ScoreResult score = job.score();
      if (static_cast<size_t>(score.logprobs_size()) != ids.size() - 1) {
        return absl::InternalError(
            absl::StrCat("score: workers gave ", score.logprobs_size(),
                         " probabilities, want ", ids.size() - 1));
      }
      parts_ = SplitScore(ids, std::move(score));
    }
    if (sent_ == parts_.size()) return absl::OkStatus();
    *event.mutable_result() = std::move(parts_[sent_++]);
    return event;
  }
  if (progress.scored != told_) {
    told_ = progress.scored;
    event.mutable_progress()->set_done(told_);
    event.mutable_progress()->set_total(static_cast<uint32_t>(ids.size() - 1));
    return event;
  }
  if (auto reason = waiting_.Next(progress); reason.has_value()) {
    event.mutable_waiting()->set_reason(*std::move(reason));
    return event;
  }
  return std::monostate();
}

v1::Timings TimingsOf(const RequestTimings& timings, double load_ms) {
  v1::Timings out;
  out.set_load_ms(load_ms);
  out.set_prompt_n(timings.prompt_n);
  out.set_prompt_ms(timings.prompt_ms);
  out.set_predicted_n(timings.predicted_n);
  out.set_predicted_ms(timings.predicted_ms);
  out.set_cached_n(timings.cached_n);
  return out;
}

v1::JobInfo InfoOf(const Job& job, const JobProgress& progress) {
  v1::JobInfo info;
  info.set_id(job.id());
  info.set_kind(job.request().windows ? v1::JOB_KIND_SCORE
                                      : v1::JOB_KIND_GENERATE);
  info.set_state(progress.state);
  info.set_waits_for(progress.waits_for);
  info.set_detached(job.kept());
  info.set_created_unix_ms(UnixMs(job.created()));
  info.set_started_unix_ms(UnixMs(progress.started));
  info.set_ended_unix_ms(UnixMs(progress.ended));
  info.set_prompt_n(static_cast<uint32_t>(job.request().prompt_ids.size()));
  info.set_predicted_n(static_cast<uint32_t>(progress.tokens));
  info.set_scored_n(progress.scored);
  info.set_error_code(static_cast<uint32_t>(progress.error.code()));
  info.set_error(std::string(progress.error.message()));
  return info;
}

}  // namespace ringfleet::coordinator
