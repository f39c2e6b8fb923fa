// SPDX-License-Identifier: Apache-2.0
#include "cluster/recording/trace_recorder.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/deadline.h"

namespace ringfleet::cluster {

int64_t TraceNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             Deadline::Clock::now().time_since_epoch())
      .count();
}

absl::Status TraceRecorder::Start(size_t capacity) {
  if (capacity == 0 || capacity > kMostEvents) {
    return absl::InvalidArgumentError(
        absl::StrCat("trace: ", capacity, " events, want 1 to ", kMostEvents));
  }
  {
    MutexLock lock(&mu_);
    if (on() || starting_) {
      return absl::FailedPreconditionError("trace: another one is recorded");
    }
    starting_ = true;
  }
  // Outside the lock, which every event takes.
  std::vector<TraceEvent> ring(capacity);
  MutexLock lock(&mu_);
  starting_ = false;
  ring_ = std::move(ring);
  added_ = 0;
  step_ = 0;
  layer_ = -1;
  on_ = true;
  return absl::OkStatus();
}

TraceRecorder::Trace TraceRecorder::Stop() {
  Trace trace;
  uint64_t added = 0;
  {
    MutexLock lock(&mu_);
    on_ = false;
    ring_.swap(trace.events);
    added = added_;
  }
  const size_t capacity = trace.events.size();
  if (added <= capacity) {
    trace.events.resize(added);
    return trace;
  }
  trace.dropped = added - capacity;
  std::rotate(trace.events.begin(),
              trace.events.begin() + static_cast<ptrdiff_t>(added % capacity),
              trace.events.end());
  return trace;
}

void TraceRecorder::SetStep(uint64_t step) {
  MutexLock lock(&mu_);
  step_ = step;
  layer_ = -1;
}

void TraceRecorder::SetLayer(int layer) {
  MutexLock lock(&mu_);
  layer_ = static_cast<int16_t>(layer);
}

void TraceRecorder::Add(const TraceEvent& event) {
  MutexLock lock(&mu_);
  if (ring_.empty()) return;
  TraceEvent& own = ring_[added_++ % ring_.size()];
  own = event;
  own.step = step_;
  own.layer = layer_;
}

TraceScope TraceScope::Step(TraceRecorder* recorder, uint64_t step) {
  if (recorder != nullptr && recorder->on()) recorder->SetStep(step);
  return TraceScope(recorder, "step", TraceEvent::Kind::kStep);
}

TraceScope TraceScope::Layer(TraceRecorder* recorder, int layer) {
  if (recorder != nullptr && recorder->on()) recorder->SetLayer(layer);
  return TraceScope(recorder, "layer", TraceEvent::Kind::kLayer);
}

void TraceScope::End() {
  event_.end_ns = TraceNow();
  recorder_->Add(event_);
  if (event_.kind == TraceEvent::Kind::kLayer) recorder_->SetLayer(-1);
}

}  // namespace ringfleet::cluster
