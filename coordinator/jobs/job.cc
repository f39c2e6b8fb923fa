// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/job.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace ringfleet::coordinator {

Job::Job(Request request, bool kept, TextRules rules, absl::Time created)
    : request_(std::move(request)),
      text_rules_(std::move(rules)),
      kept_(kept),
      created_(created) {
  request_.events = this;
  if (!text_rules_.stops.empty()) stops_.emplace(text_rules_);
}

std::shared_ptr<Job> Job::Make(Request request, bool kept, TextRules rules) {
  return std::shared_ptr<Job>(
      new Job(std::move(request), kept, std::move(rules), absl::Now()));
}

std::shared_ptr<Job> Job::Restore(Request request, TextRules rules,
                                  absl::Time created, JobProgress progress,
                                  std::vector<DrawnToken> tokens,
                                  v1::ScoreResult score) {
  std::shared_ptr<Job> job(
      new Job(std::move(request), /*kept=*/true, std::move(rules), created));
  MutexLock lock(&job->mu_);
  job->progress_ = std::move(progress);
  job->progress_.tokens = tokens.size();
  job->tokens_ = std::move(tokens);
  job->score_ = std::move(score);
  if (job->stops_.has_value() && !job->progress_.has_ended()) {
    for (const DrawnToken& token : job->tokens_) job->stops_->Add(token.id);
    if (job->stops_->stop().has_value()) {
      job->EndLocked(v1::FINISH_REASON_STOP, {});
    }
  }
  return job;
}

std::shared_ptr<const Request> Job::RequestOf(const std::shared_ptr<Job>& job) {
  return {job, &job->request_};
}

JobProgress Job::progress() const {
  MutexLock lock(&mu_);
  return progress_;
}

std::vector<DrawnToken> Job::TokensFrom(size_t first) const {
  MutexLock lock(&mu_);
  if (first >= tokens_.size()) return {};
  return {tokens_.begin() + static_cast<ptrdiff_t>(first), tokens_.end()};
}

v1::ScoreResult Job::score() const {
  MutexLock lock(&mu_);
  return score_;
}

void Job::Observe(std::weak_ptr<JobObserver> observer) {
  MutexLock lock(&mu_);
  observers_.erase(
      std::remove_if(observers_.begin(), observers_.end(),
                     [](const auto& known) { return known.expired(); }),
      observers_.end());
  observers_.push_back(std::move(observer));
}

void Job::Notify() {
  std::vector<std::weak_ptr<JobObserver>> observers;
  {
    MutexLock lock(&mu_);
    observers = observers_;
  }
  for (const auto& weak : observers) {
    if (const auto observer = weak.lock()) observer->OnJobChange();
  }
}

void Job::HoldUntilStored() {
  MutexLock lock(&mu_);
  stored_.reset();
}

void Job::OnStored(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    stored_ = status;
  }
  Notify();
}

std::optional<absl::Status> Job::stored() const {
  MutexLock lock(&mu_);
  return stored_;
}

void Job::OnRunning(uint32_t cached_n) {
  {
    MutexLock lock(&mu_);
    if (progress_.has_ended()) return;
    progress_.state = v1::JOB_STATE_RUNNING;
    progress_.waits_for.clear();
    progress_.started = std::min(progress_.started, absl::Now());
    progress_.timings.cached_n = cached_n;
  }
  Notify();
}

void Job::OnWaiting(const std::string& why) {
  {
    MutexLock lock(&mu_);
    if (progress_.has_ended()) return;
    progress_.state = v1::JOB_STATE_WAITING;
    progress_.waits_for = why;
  }
  Notify();
}

void Job::OnToken(DrawnToken token) {
  {
    MutexLock lock(&mu_);
    if (progress_.has_ended()) return;
    const uint32_t id = token.id;
    tokens_.push_back(std::move(token));
    progress_.tokens = tokens_.size();
    if (stops_.has_value()) {
      const absl::Time now = absl::Now();
      if (tokens_.size() == 1) first_token_ = now;
      stops_->Add(id);
      if (stops_->stop().has_value()) {
        has_enough_ = true;
        const absl::Time started = std::min(progress_.started, first_token_);
        EndLocked(
            v1::FINISH_REASON_STOP,
            {.prompt_n = static_cast<uint32_t>(request_.prompt_ids.size()),
             .prompt_ms = absl::ToDoubleMilliseconds(first_token_ - started),
             .predicted_n = static_cast<uint32_t>(tokens_.size()),
             .predicted_ms = absl::ToDoubleMilliseconds(now - first_token_)});
      }
    }
  }
  Notify();
}

void Job::OnProgress(uint32_t scored) {
  {
    MutexLock lock(&mu_);
    progress_.scored = scored;
  }
  Notify();
}

void Job::OnScore(v1::ScoreResult score) {
  {
    MutexLock lock(&mu_);
    score_ = std::move(score);
  }
  Notify();
}

void Job::OnFinished(v1::FinishReason reason, const RequestTimings& timings) {
  {
    MutexLock lock(&mu_);
    has_enough_ = false;
    EndLocked(reason, timings);
  }
  Notify();
}

void Job::EndLocked(v1::FinishReason reason, const RequestTimings& timings) {
  if (progress_.has_ended()) return;
  progress_.state = v1::JOB_STATE_COMPLETED;
  progress_.waits_for.clear();
  progress_.reason = reason;
  progress_.timings = timings;
  progress_.ended = absl::Now();
}

bool Job::has_enough() const {
  MutexLock lock(&mu_);
  return has_enough_;
}

void Job::OnFailed(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    has_enough_ = false;
    if (progress_.has_ended()) return;
    progress_.state = absl::IsCancelled(status) ? v1::JOB_STATE_CANCELLED
                                                : v1::JOB_STATE_FAILED;
    progress_.waits_for.clear();
    progress_.error = status;
    progress_.ended = absl::Now();
  }
  Notify();
}

}  // namespace ringfleet::coordinator
