// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/request_queue.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace ringfleet::coordinator {

void Run::AddFailure(uint64_t begin, uint64_t end) {
  if (failures > 0 && begin < failed_end && failed_begin < end) {
    ++failures;
    failed_begin = std::max(failed_begin, begin);
    failed_end = std::min(failed_end, end);
  } else {
    failures = 1;
    failed_begin = begin;
    failed_end = end;
  }
}

void RequestQueue::Push(std::shared_ptr<Run> run) {
  const std::string& owner = run->request->owner;
  const bool waits = std::any_of(
      waiting_.begin(), waiting_.end(),
      [&owner](const auto& other) { return other->request->owner == owner; });
  if (!waits) {
    // The least that an owner with waiting requests was charged.
    std::optional<uint64_t> least;
    for (const auto& other : waiting_) {
      const uint64_t charged = charged_[other->request->owner];
      least = std::min(least.value_or(charged), charged);
    }
    if (!least.has_value()) charged_.clear();
    uint64_t& charged = charged_[owner];
    charged = std::max(charged, least.value_or(0));
  }
  const auto place = [](const Run& waiting) {
    return std::make_pair(waiting.request->priority, waiting.arrival);
  };
  auto at = waiting_.end();
  while (at != waiting_.begin() && place(**(at - 1)) > place(*run)) --at;
  waiting_.insert(at, std::move(run));
}

std::shared_ptr<Run> RequestQueue::Next(
    absl::FunctionRef<bool(const Run&)> holds) const {
  std::shared_ptr<Run> next;
  uint64_t least = 0;
  for (const std::shared_ptr<Run>& run : waiting_) {
    if (next != nullptr && run->request->priority != next->request->priority) {
      break;
    }
    if (holds(*run)) continue;
    const auto it = charged_.find(run->request->owner);
    const uint64_t charged = it == charged_.end() ? 0 : it->second;
    if (next != nullptr && charged >= least) continue;
    next = run;
    least = charged;
  }
  return next;
}

void RequestQueue::Charge(const Run& run, uint64_t tokens) {
  charged_[run.request->owner] += tokens;
}

std::shared_ptr<Run> RequestQueue::Pop() {
  if (waiting_.empty()) return nullptr;
  std::shared_ptr<Run> run = std::move(waiting_.front());
  waiting_.pop_front();
  return run;
}

std::shared_ptr<Run> RequestQueue::Take(
    absl::FunctionRef<bool(const Run&)> matches) {
  const auto it = std::find_if(waiting_.begin(), waiting_.end(),
                               [&](const auto& run) { return matches(*run); });
  if (it == waiting_.end()) return nullptr;
  std::shared_ptr<Run> run = std::move(*it);
  waiting_.erase(it);
  return run;
}

}  // namespace ringfleet::coordinator
