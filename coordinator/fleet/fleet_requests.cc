// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/fleet_requests.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/deadline.h"

namespace ringfleet::coordinator {

void Deliver(const std::vector<RequestUpdate>& updates) {
  for (const RequestUpdate& update : updates) update.Deliver();
}

std::vector<RequestUpdate> FleetRequests::Open(
    const Scheduler::Options& options) {
  std::vector<RequestUpdate> refused;
  MutexLock lock(&mu_);
  epoch_ = options.epoch;
  scheduler_ = std::make_unique<Scheduler>(
      options, [] { return cluster::Deadline::Clock::now(); });
  for (auto& request : std::exchange(kept_, {})) {
    const absl::Status status = scheduler_->Submit(request);
    if (!status.ok()) refused.push_back({std::move(request), status});
  }
  return refused;
}

std::vector<RequestUpdate> FleetRequests::Close(const absl::Status& cause,
                                                bool keep_waiting) {
  {
    MutexLock lock(&mu_);
    if (scheduler_ != nullptr) {
      if (keep_waiting) kept_ = scheduler_->TakeWaiting();
      scheduler_->FailAll(cause);
      std::vector<RequestUpdate> updates = scheduler_->TakeUpdates();
      scheduler_.reset();
      return updates;
    }
  }
  return FailKept(cause);
}

std::vector<RequestUpdate> FleetRequests::FailKept(const absl::Status& cause) {
  std::vector<RequestUpdate> updates;
  MutexLock lock(&mu_);
  for (auto& request : std::exchange(kept_, {})) {
    updates.push_back({std::move(request), cause});
  }
  return updates;
}

absl::Status FleetRequests::Submit(std::shared_ptr<const Request> request) {
  MutexLock lock(&mu_);
  if (scheduler_ == nullptr) {
    return absl::UnavailableError("no epoch runs");
  }
  return scheduler_->Submit(std::move(request));
}

absl::Status FleetRequests::Cancel(absl::string_view id,
                                   std::vector<RequestUpdate>* updates) {
  MutexLock lock(&mu_);
  // The thread that runs the steps delivers these.
  if (scheduler_ != nullptr) return scheduler_->Cancel(id);
  const auto found =
      std::find_if(kept_.begin(), kept_.end(),
                   [&](const auto& request) { return request->id == id; });
  if (found == kept_.end()) {
    return absl::NotFoundError(
        absl::StrCat("job ", id, " is neither running nor waiting"));
  }
  updates->push_back({*found, absl::CancelledError(
                                  absl::StrCat("job ", id, " was cancelled"))});
  kept_.erase(found);
  return absl::OkStatus();
}

FleetRequests::Counts FleetRequests::counts() const {
  MutexLock lock(&mu_);
  if (scheduler_ == nullptr) return {};
  return {.running = scheduler_->running(), .waiting = scheduler_->waiting()};
}

void FleetRequests::Hold(uint64_t epoch, bool held) {
  MutexLock lock(&mu_);
  if (scheduler_ != nullptr && epoch_ == epoch) scheduler_->Hold(held);
}

bool FleetRequests::quiet() const {
  MutexLock lock(&mu_);
  return scheduler_ != nullptr && scheduler_->quiet();
}

std::optional<v1::StepPlan> FleetRequests::NextPlan() {
  MutexLock lock(&mu_);
  return scheduler_->NextPlan();
}

std::optional<v1::StepPlan> FleetRequests::EmptyPlan() {
  MutexLock lock(&mu_);
  return scheduler_->EmptyPlan();
}

absl::Status FleetRequests::OnResult(const v1::StepResult& merged) {
  MutexLock lock(&mu_);
  return scheduler_->OnResult(merged);
}

std::vector<RequestUpdate> FleetRequests::TakeUpdates() {
  MutexLock lock(&mu_);
  return scheduler_->TakeUpdates();
}

void FleetRequests::ContinueAfter(uint64_t last_step) {
  MutexLock lock(&mu_);
  scheduler_->ContinueAfter(last_step);
}

uint64_t FleetRequests::last_step() const {
  MutexLock lock(&mu_);
  return scheduler_ == nullptr ? 0 : scheduler_->last_step();
}

}  // namespace ringfleet::coordinator
