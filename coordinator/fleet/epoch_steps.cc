// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/epoch_steps.h"

#include "cluster/process/deadline.h"

namespace ringfleet::coordinator {

std::optional<v1::StepPlan> EpochSteps::NextPlan() {
  if (!bench_.owns_steps() && requests_.quiet()) {
    bench_.OwnSteps(requests_.last_step());
  }
  std::optional<v1::StepPlan> plan =
      bench_.owns_steps() ? bench_.NextPlan() : requests_.NextPlan();
  // A benchmark's steps are its own.
  if (!plan.has_value() && moves_.awaits_step() && bench_.free()) {
    plan = requests_.EmptyPlan();
  }
  if (plan.has_value()) {
    moves_.AddTo(&*plan);
    figures_.OnPlan(*plan, cluster::Deadline::Clock::now());
  }
  RetireBench();
  requests_.Deliver();
  return plan;
}

std::optional<cluster::Deadline::Clock::time_point> EpochSteps::held_until()
    const {
  if (bench_.owns_steps()) return std::nullopt;
  return requests_.held_until();
}

absl::Status EpochSteps::OnResult(const v1::StepResult& merged) {
  stepped_ = true;
  figures_.OnResult(merged, cluster::Deadline::Clock::now());
  const absl::Status status = bench_.owns_steps() ? bench_.OnResult(merged)
                                                  : requests_.OnResult(merged);
  moves_.OnResult(merged.step());
  RetireBench();
  requests_.Deliver();
  return status;
}

void EpochSteps::RetireBench() {
  const std::optional<uint64_t> last_step = bench_.Retire();
  if (!last_step.has_value()) return;
  // One that was cancelled before its first plan may have been followed by
  // plans of requests.
  if (*last_step > requests_.last_step()) requests_.ContinueAfter(*last_step);
  epoch_.Wake();
}

}  // namespace ringfleet::coordinator
