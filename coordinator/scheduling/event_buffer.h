// SPDX-License-Identifier: Apache-2.0
// Carries the events of a request from the fleet's thread to the thread that
// answers its caller.
#ifndef RINGFLEET_COORDINATOR_SCHEDULING_EVENT_BUFFER_H_
#define RINGFLEET_COORDINATOR_SCHEDULING_EVENT_BUFFER_H_

#include <deque>
#include <optional>
#include <variant>

#include "absl/status/status.h"
#include "cluster/process/deadline.h"
#include "coordinator/scheduling/request.h"
#include "coordinator/scheduling/scheduler.h"
#include "kernels/mutex.h"

namespace ringfleet::coordinator {

// Thread-safe. The context of a request bounds the number of its events.
class EventBuffer : public RequestEvents {
 public:
  using Event = decltype(RequestUpdate::what);

  void OnToken(uint32_t id, float logprob) override;
  void OnScore(const v1::ScoreResult& part) override;
  void OnFinished(v1::FinishReason reason,
                  const RequestTimings& timings) override;
  void OnFailed(const absl::Status& status) override;

  // Returns the next event, or nothing if none comes before the deadline.
  std::optional<Event> Pop(cluster::Deadline deadline);

  // Drops all further events: the caller has left.
  void Abandon();

 private:
  void Push(Event event);

  Mutex mu_;
  CondVar arrived_;
  bool abandoned_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Event> events_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SCHEDULING_EVENT_BUFFER_H_
