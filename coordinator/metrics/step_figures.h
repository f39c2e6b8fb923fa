// SPDX-License-Identifier: Apache-2.0
// Counts the work of a fleet's steps, for metrics.
#ifndef RINGFLEET_COORDINATOR_METRICS_STEP_FIGURES_H_
#define RINGFLEET_COORDINATOR_METRICS_STEP_FIGURES_H_

#include <cstdint>
#include <deque>

#include "cluster/process/deadline.h"
#include "kernels/mutex.h"
#include "protos/cluster.pb.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// Counts over all epochs. Thread-safe. Calls no other object while it holds its
// lock.
class StepFigures {
 public:
  using Time = cluster::Deadline::Clock::time_point;

  StepFigures();

  void OnReady();
  // An epoch has ended. Plans without a result are forgotten.
  void OnEnd(bool failed);

  // Notes a plan that is sent, and the merged result of the oldest plan. A
  // step's time begins when it is sent, or with the result of the step before
  // it.
  void OnPlan(const v1::StepPlan& plan, Time now);
  void OnResult(const v1::StepResult& merged, Time now);

  // Replaces the imbalance of experts.
  void SetExperts(
      const google::protobuf::RepeatedPtrField<v1::ExpertImbalance>& experts);

  v1::FleetFigures Read() const;

 private:
  struct Sent {
    Time at;
    uint64_t prompt_tokens = 0;
    uint64_t replayed_tokens = 0;
    uint64_t decodes = 0;  // Tokens, drafts included.
    uint64_t sequences = 0;
    uint64_t tokens() const {
      return prompt_tokens + replayed_tokens + decodes;
    }
  };

  mutable Mutex mu_;
  v1::FleetFigures figures_ ABSL_GUARDED_BY(mu_);
  std::deque<Sent> in_flight_ ABSL_GUARDED_BY(mu_);
  Time last_result_ ABSL_GUARDED_BY(mu_);
  // Averages of steps with tokens.
  double mean_sent_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  double mean_tokens_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_METRICS_STEP_FIGURES_H_
