// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/fleet_requests.h"

#include <utility>

#include "cluster/process/deadline.h"

namespace ringfleet::coordinator {

FleetRequests::FleetRequests()
    : scheduler_([] { return cluster::Deadline::Clock::now(); }) {}

void FleetRequests::Deliver() {
  MutexLock delivery(&delivery_mu_);
  while (true) {
    std::vector<RequestUpdate> updates;
    {
      MutexLock lock(&mu_);
      updates = scheduler_.TakeUpdates();
    }
    bool cancelled = false;
    for (const RequestUpdate& update : updates) {
      update.Deliver();
      if (!update.request->events->has_enough()) continue;
      MutexLock lock(&mu_);
      // NOT_FOUND: the request has ended, and an update says so.
      cancelled |= scheduler_.Cancel(update.request->id).ok();
    }
    if (!cancelled) return;
  }
}

void FleetRequests::Open(const Scheduler::Epoch& epoch) {
  MutexLock lock(&mu_);
  scheduler_.OpenEpoch(epoch);
}

void FleetRequests::Close(const absl::Status& cause, bool failed) {
  {
    MutexLock lock(&mu_);
    scheduler_.CloseEpoch(cause, failed);
  }
  Deliver();
}

void FleetRequests::TellWaiting(const std::string& why) {
  {
    MutexLock lock(&mu_);
    scheduler_.TellWaiting(why);
  }
  Deliver();
}

void FleetRequests::FailAll(const absl::Status& cause) {
  {
    MutexLock lock(&mu_);
    scheduler_.FailAll(cause);
  }
  Deliver();
}

void FleetRequests::Stop(const absl::Status& cause) {
  {
    MutexLock lock(&mu_);
    stopped_ = cause;
    scheduler_.FailAll(cause);
  }
  Deliver();
}

absl::Status FleetRequests::Submit(std::shared_ptr<const Request> request) {
  absl::Status status;
  {
    MutexLock lock(&mu_);
    status = stopped_.ok() ? scheduler_.Submit(std::move(request)) : stopped_;
  }
  Deliver();
  return status;
}

absl::Status FleetRequests::Cancel(absl::string_view id) {
  absl::Status status;
  {
    MutexLock lock(&mu_);
    status = scheduler_.Cancel(id);
  }
  Deliver();
  return status;
}

void FleetRequests::Expire(bool loading, absl::Duration longest_wait,
                           const absl::Status& why) {
  {
    MutexLock lock(&mu_);
    scheduler_.Expire(loading, longest_wait, why);
  }
  Deliver();
}

FleetRequests::Counts FleetRequests::counts() const {
  MutexLock lock(&mu_);
  return {.running = scheduler_.running(), .waiting = scheduler_.waiting()};
}

v1::CacheUse FleetRequests::cache_use() const {
  Scheduler::CacheUse now;
  {
    MutexLock lock(&mu_);
    now = scheduler_.cache_use();
  }
  v1::CacheUse use;
  use.set_blocks_total(now.blocks_total);
  use.set_blocks_used(now.blocks_used);
  use.set_preemptions(now.preemptions);
  use.set_recomputed_positions(now.recomputed_positions);
  use.set_blocks_kept(now.blocks_kept);
  use.set_prefix_queries(now.prefix_queries);
  use.set_prefix_hits(now.prefix_hits);
  return use;
}

void FleetRequests::Hold(uint64_t epoch, const std::string& why) {
  {
    MutexLock lock(&mu_);
    if (scheduler_.epoch() == epoch) scheduler_.Hold(why);
  }
  Deliver();
}

bool FleetRequests::quiet() const {
  MutexLock lock(&mu_);
  return scheduler_.open() && scheduler_.quiet();
}

std::optional<v1::StepPlan> FleetRequests::NextPlan() {
  MutexLock lock(&mu_);
  return scheduler_.NextPlan();
}

std::optional<cluster::Deadline::Clock::time_point> FleetRequests::held_until()
    const {
  MutexLock lock(&mu_);
  return scheduler_.held_until();
}

std::optional<v1::StepPlan> FleetRequests::EmptyPlan() {
  MutexLock lock(&mu_);
  return scheduler_.EmptyPlan();
}

absl::Status FleetRequests::OnResult(const v1::StepResult& merged) {
  MutexLock lock(&mu_);
  return scheduler_.OnResult(merged);
}

void FleetRequests::ContinueAfter(uint64_t last_step) {
  MutexLock lock(&mu_);
  scheduler_.ContinueAfter(last_step);
}

uint64_t FleetRequests::last_step() const {
  MutexLock lock(&mu_);
  return scheduler_.open() ? scheduler_.last_step() : 0;
}

}  // namespace ringfleet::coordinator
