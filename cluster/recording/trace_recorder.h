// SPDX-License-Identifier: Apache-2.0
// What a rank does and when, for a timeline: its steps, the parts of a layer,
// the operations between ranks and each frame of them. Recorded only while
// somebody asks for it.
#ifndef RINGFLEET_CLUSTER_RECORDING_TRACE_RECORDER_H_
#define RINGFLEET_CLUSTER_RECORDING_TRACE_RECORDER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/mutex.h"

namespace ringfleet::cluster {

// Something that took time. Of one thread's events any two lie within each
// other or apart.
struct TraceEvent {
  enum class Kind : uint8_t {
    kStep,        // All of a step.
    kLayer,       // Of a step, all of one layer.
    kCompute,     // A part of a layer, or of a step.
    kCollective,  // All of an operation between ranks.
    kSend,        // Handing a frame to its link.
    kReceive,     // Dealing with a frame that has come.
    kWait,        // For a frame, or for memory being sent.
  };
  // The executor's, or the one that communicates beside it in a product that
  // is fused with an exchange.
  enum class Thread : uint8_t { kExecutor, kCommunication };

  absl::string_view name;  // Of static storage.
  Kind kind = Kind::kCompute;
  Thread thread = Thread::kExecutor;
  int16_t layer = -1;  // -1: none.
  int32_t peer = -1;   // Rank in the world; -1: none.
  uint64_t step = 0;
  uint64_t bytes = 0;    // As they travel.
  int64_t begin_ns = 0;  // Of the steady clock.
  int64_t end_ns = 0;
};

// Nanoseconds of the steady clock.
int64_t TraceNow();

// Keeps the latest events of one rank. Add, SetStep and SetLayer come from the
// threads that run a step, the rest from any. Allocates in Start only. While it
// is off, TraceScope costs the look at a pointer and at a flag.
class TraceRecorder {
 public:
  static constexpr size_t kDefaultEvents = size_t{1} << 18;
  static constexpr size_t kMostEvents = size_t{1} << 22;

  bool on() const { return on_.load(std::memory_order_relaxed); }

  // Begins to keep `capacity` events.
  // Errors: FAILED_PRECONDITION: it is on. INVALID_ARGUMENT: `capacity` is 0 or
  // more than kMostEvents.
  absl::Status Start(size_t capacity);

  struct Trace {
    std::vector<TraceEvent> events;  // In the order in which they ended.
    uint64_t dropped = 0;            // Older ones.
  };
  // Ends it and returns what was kept; nothing when it was off. What has begun
  // before and ends later is not recorded, unless another recording is on then.
  Trace Stop();

  // Step and layer of events that are added from here on; -1: of no layer.
  void SetStep(uint64_t step);
  void SetLayer(int layer);

  // Step and layer are filled in. Does nothing while it is off.
  void Add(const TraceEvent& event);

 private:
  std::atomic<bool> on_{false};  // Set with mu_ held.

  Mutex mu_;
  std::vector<TraceEvent> ring_ ABSL_GUARDED_BY(mu_);  // Empty while off.
  uint64_t added_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t step_ ABSL_GUARDED_BY(mu_) = 0;
  int16_t layer_ ABSL_GUARDED_BY(mu_) = -1;
};

// An event that lasts as long as the scope, where a recorder is on.
class TraceScope {
 public:
  // Work of the executor's thread. `recorder` may be null.
  TraceScope(TraceRecorder* recorder, absl::string_view name,
             TraceEvent::Kind kind = TraceEvent::Kind::kCompute)
      : TraceScope(recorder, {.name = name, .kind = kind}) {}
  // `event` without times.
  TraceScope(TraceRecorder* recorder, const TraceEvent& event)
      : recorder_(recorder != nullptr && recorder->on() ? recorder : nullptr) {
    if (recorder_ == nullptr) return;
    event_ = event;
    event_.begin_ns = TraceNow();
  }
  ~TraceScope() {
    if (recorder_ != nullptr) End();
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

  // A step and a layer, to which events inside belong.
  static TraceScope Step(TraceRecorder* recorder, uint64_t step);
  static TraceScope Layer(TraceRecorder* recorder, int layer);

 private:
  void End();

  TraceRecorder* const recorder_;
  TraceEvent event_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RECORDING_TRACE_RECORDER_H_
