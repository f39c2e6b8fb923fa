// SPDX-License-Identifier: Apache-2.0
// The last operations of a rank, kept for the time after a failure. The
// position of each rank when the fleet stopped tells which rank was missing.
#ifndef RINGFLEET_CLUSTER_RECORDING_FLIGHT_RECORDER_H_
#define RINGFLEET_CLUSTER_RECORDING_FLIGHT_RECORDER_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/process/deadline.h"
#include "cluster/recording/seq_locked.h"
#include "cluster/recording/tick_clock.h"

namespace ringfleet::cluster {

// A record without its times.
struct FlightOperation {
  enum class State : uint8_t { kRunning, kDone, kFailed };

  uint64_t epoch = 0;
  uint32_t group = 0;
  uint64_t sequence = 0;
  uint32_t op_descriptor = 0;
  uint64_t count = 0;
  uint64_t bytes = 0;  // The whole vector as it travels.
  State state = State::kRunning;
  absl::StatusCode code = absl::StatusCode::kOk;  // Why it failed.
  int waiting_for = -1;  // Rank whose frame came last or is missing.
  uint32_t frames = 0;   // Received.
};

struct FlightRecord : FlightOperation {
  Deadline::Clock::time_point begin;
  Deadline::Clock::time_point first_frame;  // begin when none came.
  Deadline::Clock::time_point last_frame;   // begin when none came.
  Deadline::Clock::time_point end;          // begin while it runs.
};

// The thread that runs the operations calls Begin, Frame, WaitFor and End,
// which never wait. Any thread may call the rest. Only the constructor and
// Records allocate. Frame, WaitFor and End do nothing before the first Begin.
class FlightRecorder {
 public:
  // Takes half a megabyte, and holds 33 tokens of a model of 61 layers.
  static constexpr size_t kCapacity = 4096;

  FlightRecorder();

  // Starts a record, whose state is kRunning. It replaces the oldest record
  // when there are kCapacity.
  void Begin(const FlightOperation& operation);
  // Notes a frame of `rank`, a rank of the world.
  void Frame(int rank);
  // Notes that the operation waits for a frame of `rank`.
  void WaitFor(int rank);
  void End(const absl::Status& status);

  // Returns all records, oldest first.
  std::vector<FlightRecord> Records() const;
  // Returns the record that began last.
  std::optional<FlightRecord> Latest() const;

  // Returns a line for logs: "epoch 3 #17 all_reduce (one_shot, f32), 7168
  // elements, 28672 bytes: running for 250 ms, 2 frames, waits for rank 2".
  static std::string Line(const FlightRecord& record,
                          Deadline::Clock::time_point now);

 private:
  struct Entry {
    uint64_t number = 0;  // The operation's, from 0.
    FlightOperation operation;
    uint64_t begin = 0;  // In ticks, as the others.
    uint64_t first_frame = 0;
    uint64_t last_frame = 0;
    uint64_t end = 0;
  };

  static FlightRecord WithTimes(const Entry& entry,
                                const TickClock::Scale& scale);

  // Shows the latest entry to readers.
  void Show() { ring_[latest_.number % kCapacity].Store(latest_); }

  const TickClock clock_;
  std::vector<SeqLocked<Entry>> ring_;
  std::atomic<uint64_t> begun_{0};
  Entry latest_;  // Belongs to the thread that runs the operations.
};

// Replaces the file `path` by `title` and a line for each record, which starts
// with the time of day at which the operation began. UNAVAILABLE: the file,
// which the message names, cannot be written.
absl::Status WriteFlightFile(const std::string& path, absl::string_view title,
                             const FlightRecorder& recorder);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RECORDING_FLIGHT_RECORDER_H_
