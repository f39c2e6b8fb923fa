// SPDX-License-Identifier: Apache-2.0
// A job: a request with its state, its tokens so far and what came of it. It
// belongs to no epoch and to no connection: services create it, watch it and
// cancel it, the fleet runs it.
#ifndef RINGFLEET_COORDINATOR_JOBS_JOB_H_
#define RINGFLEET_COORDINATOR_JOBS_JOB_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/jobs/text_stream.h"
#include "coordinator/scheduling/request.h"
#include "kernels/mutex.h"
#include "protos/coordinator.pb.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// Learns that a job has changed. Calls come from several threads, one at a time
// for each job. They must not block, and must not submit or cancel a job.
class JobObserver {
 public:
  virtual ~JobObserver() = default;
  virtual void OnJobChange() = 0;
};

// The state of a job and its outcome.
struct JobProgress {
  v1::JobState state = v1::JOB_STATE_WAITING;
  std::string waits_for;  // While it waits and the fleet is not ready.
  size_t tokens = 0;
  uint32_t scored = 0;  // Ids of a text that have their probabilities.
  absl::Time started = absl::InfiniteFuture();  // First entered a slot.
  absl::Time ended = absl::InfiniteFuture();
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
  RequestTimings timings;  // Once completed, but for cached_n.
  absl::Status error;      // Once failed or cancelled.

  bool has_ended() const { return ended != absl::InfiniteFuture(); }
};

// Thread-safe.
class Job final : public RequestEvents {
 public:
  // `request.events` is set by this object. `kept`: the result stays until it
  // is fetched or dropped, whoever watches. The job ends with the token whose
  // text completes a stop string of `rules`.
  static std::shared_ptr<Job> Make(Request request, bool kept,
                                   TextRules rules = {});
  // Makes a kept job of what an earlier coordinator knew of it. A job that has
  // not ended gets the events behind `tokens`, whose ids `request` has.
  static std::shared_ptr<Job> Restore(Request request, TextRules rules,
                                      absl::Time created, JobProgress progress,
                                      std::vector<DrawnToken> tokens,
                                      v1::ScoreResult score);

  const std::string& id() const { return request_.id; }
  const Request& request() const { return request_; }
  const TextRules& text_rules() const { return text_rules_; }
  bool kept() const { return kept_; }
  absl::Time created() const { return created_; }

  // Returns the request for Fleet::Submit. It keeps the job alive.
  static std::shared_ptr<const Request> RequestOf(
      const std::shared_ptr<Job>& job);

  JobProgress progress() const;
  // Returns tokens from number `first` on.
  std::vector<DrawnToken> TokensFrom(size_t first) const;
  // Returns the score of the whole text. Empty before it is told.
  v1::ScoreResult score() const;

  // Tells `observer` of every later change, as long as it lives.
  void Observe(std::weak_ptr<JobObserver> observer);

  // A job that is to last is told of only once it is stored: callers are told
  // nothing until OnStored, and then its error, if it has one. Call the first
  // before anybody watches.
  void HoldUntilStored();
  void OnStored(const absl::Status& status);
  // Nothing: it is not stored yet.
  std::optional<absl::Status> stored() const;

  // Later events than the end are ignored.
  void OnRunning(uint32_t cached_n) override;
  void OnWaiting(const std::string& why) override;
  void OnToken(DrawnToken token) override;
  void OnProgress(uint32_t scored) override;
  void OnScore(v1::ScoreResult score) override;
  void OnFinished(v1::FinishReason reason,
                  const RequestTimings& timings) override;
  void OnFailed(const absl::Status& status) override;
  bool has_enough() const override;

 private:
  Job(Request request, bool kept, TextRules rules, absl::Time created);

  // Completes the job, or does nothing if it has ended.
  void EndLocked(v1::FinishReason reason, const RequestTimings& timings)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Calls the observers, without the lock.
  void Notify();

  Request request_;
  const TextRules text_rules_;
  const bool kept_;
  const absl::Time created_;

  mutable Mutex mu_;
  JobProgress progress_ ABSL_GUARDED_BY(mu_);
  std::vector<DrawnToken> tokens_ ABSL_GUARDED_BY(mu_);
  // Looks for stop strings. Nothing: there are none.
  std::optional<TextStream> stops_ ABSL_GUARDED_BY(mu_);
  absl::Time first_token_ ABSL_GUARDED_BY(mu_);
  // A stop string has been found, and the request has not ended yet.
  bool has_enough_ ABSL_GUARDED_BY(mu_) = false;
  v1::ScoreResult score_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> stored_ ABSL_GUARDED_BY(mu_) = absl::OkStatus();
  std::vector<std::weak_ptr<JobObserver>> observers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_JOBS_JOB_H_
