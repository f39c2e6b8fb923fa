// SPDX-License-Identifier: Apache-2.0
// Requests that wait for a slot, first come first served.
#ifndef RINGFLEET_COORDINATOR_SCHEDULING_REQUEST_QUEUE_H_
#define RINGFLEET_COORDINATOR_SCHEDULING_REQUEST_QUEUE_H_

#include <cstddef>
#include <deque>
#include <memory>

#include "absl/strings/string_view.h"
#include "coordinator/scheduling/request.h"

namespace ringfleet::coordinator {

// Not thread-safe.
class RequestQueue {
 public:
  void Push(std::shared_ptr<const Request> request);

  // Takes the request that has waited longest. Returns null if none waits.
  std::shared_ptr<const Request> Pop();

  // Takes out the request `id`. Returns null if the request does not wait here.
  std::shared_ptr<const Request> Remove(absl::string_view id);

  bool empty() const { return waiting_.empty(); }
  size_t size() const { return waiting_.size(); }

 private:
  std::deque<std::shared_ptr<const Request>> waiting_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SCHEDULING_REQUEST_QUEUE_H_
