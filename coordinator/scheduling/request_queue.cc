// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/request_queue.h"

#include <algorithm>
#include <utility>

namespace ringfleet::coordinator {

void RequestQueue::Push(std::shared_ptr<Run> run) {
  const auto place = [](const Run& waiting) {
    return std::make_pair(waiting.request->priority, waiting.arrival);
  };
  auto at = waiting_.end();
  while (at != waiting_.begin() && place(**(at - 1)) > place(*run)) --at;
  waiting_.insert(at, std::move(run));
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
