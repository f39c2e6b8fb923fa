// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_COORDINATOR_HTTP_FAKE_JOBS_H_
#define RINGFLEET_TESTS_COORDINATOR_HTTP_FAKE_JOBS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "coordinator/http/job_source.h"
#include "coordinator/metrics/step_figures.h"
#include "kernels/mutex.h"
#include "tests/testing/soon.h"

namespace ringfleet::coordinator {

// Jobs without a fleet. Thread-safe.
class FakeJobs final : public JobSource {
 public:
  // Later jobs draw these ids at once, and end.
  void AnswerWith(std::vector<uint32_t> ids, v1::FinishReason reason) {
    MutexLock lock(&mu_);
    ids_ = std::move(ids);
    reason_ = reason;
  }
  // Later jobs are refused, unless OK.
  void RefuseWith(absl::Status status) {
    MutexLock lock(&mu_);
    refusal_ = std::move(status);
  }
  void SetReady(bool ready) {
    MutexLock lock(&mu_);
    ready_ = ready;
  }

  // Positions per sequence.
  void SetContext(uint32_t context) {
    MutexLock lock(&mu_);
    context_ = context;
  }
  size_t started() const {
    MutexLock lock(&mu_);
    return jobs_.size();
  }

  // Returns job number `index` once it has been started; null after a minute.
  std::shared_ptr<Job> Await(size_t index) {
    MutexLock lock(&mu_);
    while (jobs_.size() <= index) {
      if (!changed_.WaitUntil(&mu_, testing::Soon().when())) return nullptr;
    }
    return jobs_[index];
  }
  // Returns whether so many jobs have been refused within a minute.
  bool AwaitRefused(size_t count) {
    MutexLock lock(&mu_);
    while (refused_ < count) {
      if (!changed_.WaitUntil(&mu_, testing::Soon().when())) return false;
    }
    return true;
  }
  // Returns whether the job has been left within a minute.
  bool AwaitLeft(const Job& job) {
    MutexLock lock(&mu_);
    while (left_.count(job.id()) == 0) {
      if (!changed_.WaitUntil(&mu_, testing::Soon().when())) return false;
    }
    return true;
  }

  absl::StatusOr<std::shared_ptr<Job>> Start(Request request,
                                             TextRules rules) override {
    std::vector<uint32_t> ids;
    v1::FinishReason reason;
    std::shared_ptr<Job> job;
    {
      MutexLock lock(&mu_);
      if (!refusal_.ok()) {
        ++refused_;
        changed_.NotifyAll();
        // A status of its own: the count of owners lies in a library that
        // ThreadSanitizer does not see.
        return absl::Status(refusal_.code(), refusal_.message());
      }
      request.id = absl::StrCat("job", jobs_.size());
      job = Job::Make(std::move(request), /*kept=*/false, std::move(rules));
      ids = ids_;
      reason = reason_;
    }
    if (reason != v1::FINISH_REASON_UNSPECIFIED) {
      job->OnRunning(/*cached_n=*/0);
      if (job->request().score.has_value()) {
        v1::ScoreResult score;
        for (size_t i = 1; i < job->request().prompt_ids.size(); ++i) {
          score.add_logprobs(-1.5F);
          v1::TopLogprobs* const top = score.add_prompt_top();
          for (uint32_t j = 0; j < job->request().score->prompt_top(); ++j) {
            top->add_ids(300 + j);
            top->add_logprobs(-0.25F);
          }
        }
        job->OnScore(std::move(score));
      }
      for (const uint32_t id : ids) {
        DrawnToken token = {.id = id, .logprob = -0.5F};
        const uint32_t top = job->request().top_logprobs;
        for (uint32_t i = 0; i < top; ++i) {
          token.top.push_back({.id = 300 + i, .logprob = -0.25F});
        }
        job->OnToken(std::move(token));
      }
      job->OnFinished(reason, {});
    }
    MutexLock lock(&mu_);
    jobs_.push_back(job);
    changed_.NotifyAll();
    return job;
  }
  void Leave(const Job& job) override {
    MutexLock lock(&mu_);
    left_.insert(job.id());
    changed_.NotifyAll();
  }
  absl::Status ready() const override {
    MutexLock lock(&mu_);
    return ready_ ? absl::OkStatus() : absl::UnavailableError("it loads");
  }
  uint32_t context() const override {
    MutexLock lock(&mu_);
    return ready_ ? context_ : 0;
  }
  v1::ClusterState state() const override {
    v1::ClusterState state;
    *state.mutable_figures() = StepFigures().Read();
    state.set_requests_running(3);
    state.set_requests_waiting(2);
    return state;
  }

 private:
  mutable Mutex mu_;
  CondVar changed_;
  bool ready_ ABSL_GUARDED_BY(mu_) = true;
  uint32_t context_ ABSL_GUARDED_BY(mu_) = 512;
  absl::Status refusal_ ABSL_GUARDED_BY(mu_);
  size_t refused_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<uint32_t> ids_ ABSL_GUARDED_BY(mu_);
  v1::FinishReason reason_ ABSL_GUARDED_BY(mu_) = v1::FINISH_REASON_UNSPECIFIED;
  std::vector<std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> left_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_TESTS_COORDINATOR_HTTP_FAKE_JOBS_H_
