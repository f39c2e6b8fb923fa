// SPDX-License-Identifier: Apache-2.0
// The events of a rank with their times, for a timeline: steps, the parts of a
// layer, the operations between ranks and each of their frames. Nothing is
// recorded before Start.
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

// Something that took time. Two events of one thread are nested or apart.
struct TraceEvent {
  enum class Kind : uint8_t {
    kStep,        // All of a step.
    kLayer,       // All of one layer of a step.
    kCompute,     // A part of a layer, or of a step.
    kCollective,  // All of an operation between ranks.
    kSend,        // Handing a frame to its link.
    kReceive,     // Dealing with a frame that has come.
    kWait,        // For a frame, or for memory being sent.
  };
  // kCommunication runs beside the executor's thread, in a product that is
  // fused with an exchange.
  enum class Thread : uint8_t { kExecutor, kCommunication };

  absl::string_view name;  // In static storage.
  Kind kind = Kind::kCompute;
  Thread thread = Thread::kExecutor;
  int16_t layer = -1;  // -1: none.
  int32_t peer = -1;   // Rank in the world; -1: none.
  uint64_t step = 0;
  uint64_t bytes = 0;    // As they travel.
  int64_t begin_ns = 0;  // On the steady clock.
  int64_t end_ns = 0;
};

// Returns nanoseconds of the steady clock.
int64_t TraceNow();

// Keeps the latest events of one rank. The threads that run a step call Add,
// SetStep and SetLayer; any thread may call the rest. Only Start allocates.
// While the recorder is off, a TraceScope costs two tests: of a pointer and of
// a flag.
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
  // Ends the recording and returns its events; none when it was off. An event
  // that ends after Stop belongs to the next recording, if one is on by then.
  Trace Stop();

  // Set step and layer of the events that follow; -1: no layer.
  void SetStep(uint64_t step);
  void SetLayer(int layer);

  // Fills step and layer in. Does nothing while the recorder is off.
  void Add(const TraceEvent& event);

 private:
  std::atomic<bool> on_{false};  // Set with mu_ held.

  Mutex mu_;
  std::vector<TraceEvent> ring_ ABSL_GUARDED_BY(mu_);  // Empty while off.
  uint64_t added_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t step_ ABSL_GUARDED_BY(mu_) = 0;
  int16_t layer_ ABSL_GUARDED_BY(mu_) = -1;
};

// An event that lasts as long as the scope, while a recorder is on.
class TraceScope {
 public:
  // An event of the executor's thread. `recorder` may be null.
  TraceScope(TraceRecorder* recorder, absl::string_view name,
             TraceEvent::Kind kind = TraceEvent::Kind::kCompute)
      : TraceScope(recorder, {.name = name, .kind = kind}) {}
  // Fills the times of `event` in.
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

  // Return a step and a layer, to which the events inside belong.
  static TraceScope Step(TraceRecorder* recorder, uint64_t step);
  static TraceScope Layer(TraceRecorder* recorder, int layer);

 private:
  void End();

  TraceRecorder* const recorder_;
  TraceEvent event_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RECORDING_TRACE_RECORDER_H_
