// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/event_buffer.h"

#include <utility>

namespace ringfleet::coordinator {

void EventBuffer::OnToken(uint32_t id, float logprob) {
  Push(RequestUpdate::Token{id, logprob});
}

void EventBuffer::OnScore(const v1::ScoreResult& part) { Push(part); }

void EventBuffer::OnFinished(v1::FinishReason reason,
                             const RequestTimings& timings) {
  Push(RequestUpdate::Finished{reason, timings});
}

void EventBuffer::OnFailed(const absl::Status& status) { Push(status); }

void EventBuffer::Push(Event event) {
  MutexLock lock(&mu_);
  if (abandoned_) return;
  events_.push_back(std::move(event));
  arrived_.NotifyOne();
}

std::optional<EventBuffer::Event> EventBuffer::Pop(cluster::Deadline deadline) {
  MutexLock lock(&mu_);
  while (events_.empty()) {
    if (deadline.Expired()) return std::nullopt;
    arrived_.WaitUntil(&mu_, deadline.when());
  }
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void EventBuffer::Abandon() {
  MutexLock lock(&mu_);
  abandoned_ = true;
  events_.clear();
}

}  // namespace ringfleet::coordinator
