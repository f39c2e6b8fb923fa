// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/request_queue.h"

#include <algorithm>
#include <utility>

namespace ringfleet::coordinator {

void RequestQueue::Push(std::shared_ptr<const Request> request) {
  waiting_.push_back(std::move(request));
}

std::shared_ptr<const Request> RequestQueue::Pop() {
  if (waiting_.empty()) return nullptr;
  std::shared_ptr<const Request> request = std::move(waiting_.front());
  waiting_.pop_front();
  return request;
}

std::shared_ptr<const Request> RequestQueue::Remove(absl::string_view id) {
  const auto it =
      std::find_if(waiting_.begin(), waiting_.end(),
                   [id](const auto& request) { return request->id == id; });
  if (it == waiting_.end()) return nullptr;
  std::shared_ptr<const Request> request = std::move(*it);
  waiting_.erase(it);
  return request;
}

}  // namespace ringfleet::coordinator
