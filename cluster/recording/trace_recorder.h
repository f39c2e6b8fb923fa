// SPDX-License-Identifier: Apache-2.0
// Records the events of a rank with their times, for a timeline: steps, parts
// of a layer, operations between ranks and their frames. Records nothing before
// Start.
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

// An activity with a begin and an end. Two events of one thread are nested or
// do not overlap.
struct TraceEvent {
  enum class Kind : uint8_t {
    kStep,        // A whole step.
    kLayer,       // A whole layer of a step.
    kCompute,     // A part of a layer, or of a step.
    kCollective,  // A whole operation between ranks.
    kSend,        // Queueing a frame.
    kReceive,     // Handling a received frame.
    kWait,        // Waiting for a frame, or until memory is sent.
  };
  // The thread of an event. kCommunication runs beside the executor's thread,
  // in a product that is fused with a collective.
  enum class Thread : uint8_t { kExecutor, kCommunication };

  absl::string_view name;  // In static storage.
  Kind kind = Kind::kCompute;
  Thread thread = Thread::kExecutor;
  int16_t layer = -1;  // -1: none.
  int32_t peer = -1;   // Rank in the world; -1: none.
  uint64_t step = 0;
  uint64_t bytes = 0;    // On the wire.
  int64_t begin_ns = 0;  // By the steady clock.
  int64_t end_ns = 0;
};

// Returns the steady clock's time in nanoseconds.
int64_t TraceNow();

// Keeps the latest events of one rank. Only the threads that run a step may
// call Add, SetStep and SetLayer. Any thread may call the other functions. Only
// Start allocates. While the recorder is off, a TraceScope costs two tests: of
// a pointer and of a flag.
class TraceRecorder {
 public:
  static constexpr size_t kDefaultEvents = size_t{1} << 18;
  static constexpr size_t kMostEvents = size_t{1} << 22;

  bool on() const { return on_.load(std::memory_order_relaxed); }

  // Begins to record. Keeps the last `capacity` events. Errors:
  // FAILED_PRECONDITION: the recorder is on. INVALID_ARGUMENT: `capacity` is 0
  // or more than kMostEvents.
  absl::Status Start(size_t capacity);

  struct Trace {
    std::vector<TraceEvent> events;  // In the order of their ends.
    uint64_t dropped = 0;            // Number of older events.
  };
  // Ends the recording and returns its events, or no events if the recorder was
  // off. An event that ends after Stop goes to the next recording, if the
  // recorder is on again by then.
  Trace Stop();

  // Set the step and the layer of later events. Layer -1: none.
  void SetStep(uint64_t step);
  void SetLayer(int layer);

  // Records `event` with the current step and layer. Does nothing while the
  // recorder is off.
  void Add(const TraceEvent& event);

 private:
  std::atomic<bool> on_{false};  // Set with mu_ held.

  Mutex mu_;
  bool starting_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<TraceEvent> ring_ ABSL_GUARDED_BY(mu_);  // Empty while off.
  uint64_t added_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t step_ ABSL_GUARDED_BY(mu_) = 0;
  int16_t layer_ ABSL_GUARDED_BY(mu_) = -1;
};

// Records an event that begins with the constructor and ends with the
// destructor. Records nothing if the recorder is off at construction.
class TraceScope {
 public:
  // Begins an event of the executor's thread. `recorder` may be null.
  TraceScope(TraceRecorder* recorder, absl::string_view name,
             TraceEvent::Kind kind = TraceEvent::Kind::kCompute)
      : TraceScope(recorder, {.name = name, .kind = kind}) {}
  // Begins `event`. Sets its times.
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

  // Return the scope of a step and of a layer. Later events belong to the step
  // and the layer.
  static TraceScope Step(TraceRecorder* recorder, uint64_t step);
  static TraceScope Layer(TraceRecorder* recorder, int layer);

 private:
  void End();

  TraceRecorder* const recorder_;
  TraceEvent event_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RECORDING_TRACE_RECORDER_H_
