// SPDX-License-Identifier: Apache-2.0
// Keeps the last operations of a rank, to be read after a failure. The last
// operations of all ranks show which rank did not take part.
#ifndef RINGFLEET_CLUSTER_RECORDING_FLIGHT_RECORDER_H_
#define RINGFLEET_CLUSTER_RECORDING_FLIGHT_RECORDER_H_

#include <array>
#include <atomic>
#include <cstddef>
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
#include "cluster/wire/op_descriptor.h"

namespace ringfleet::cluster {

// The record of one operation, without times.
struct FlightOperation {
  enum class State : uint8_t { kRunning, kDone, kFailed };

  uint64_t epoch = 0;
  uint32_t group = 0;
  uint64_t sequence = 0;
  uint32_t op_descriptor = 0;
  uint64_t count = 0;
  uint64_t bytes = 0;  // Size of the whole vector on the wire.
  State state = State::kRunning;
  absl::StatusCode code = absl::StatusCode::kOk;  // Code of kFailed.
  int waiting_for = -1;  // Rank whose frame is missing or came last.
  uint32_t frames = 0;   // Received frames.
};

// The operations of one kind that ended well, since the recorder was made.
struct CollectiveTotal {
  Operation operation = Operation::kBarrier;
  Algorithm algorithm = Algorithm::kOneShot;
  uint64_t count = 0;
  uint64_t duration_ns = 0;
  uint64_t sent_bytes = 0;  // Payload of this rank's frames.
};

// A record with its times. A time that has not come yet equals `begin`.
struct FlightRecord : FlightOperation {
  Deadline::Clock::time_point begin;
  Deadline::Clock::time_point first_frame;
  Deadline::Clock::time_point last_frame;
  Deadline::Clock::time_point end;
};

// Only the thread that runs the operations may call Begin, Frame, Sent, WaitFor
// and End. They never wait. Any thread may call the other functions. Only the
// constructor, Records and Totals allocate. Frame, WaitFor and End do nothing
// before the first Begin.
class FlightRecorder {
 public:
  // Number of records kept. They take half a megabyte and cover 33 tokens of a
  // model of 61 layers.
  static constexpr size_t kCapacity = 4096;

  FlightRecorder();

  // Starts a record with the state kRunning. If there are kCapacity records,
  // replaces the oldest one.
  void Begin(const FlightOperation& operation);
  // Notes a received frame of `rank`, a world rank.
  void Frame(int rank);
  // Notes payload that was handed to a link.
  void Sent(size_t bytes) { sent_ += bytes; }
  // Notes that the operation waits for a frame of `rank`, a world rank.
  void WaitFor(int rank);
  void End(const absl::Status& status);

  // Returns all records, oldest first.
  std::vector<FlightRecord> Records() const;
  // Returns the record of the last Begin, or nullopt.
  std::optional<FlightRecord> Latest() const;

  // Returns the totals of each kind of operation that has ended well.
  std::vector<CollectiveTotal> Totals() const;
  // Returns the payload of all operations that have ended.
  uint64_t sent_bytes() const {
    return sent_bytes_.load(std::memory_order_relaxed);
  }

  // Returns a line for logs: "epoch 3 #17 all_reduce (one_shot, f32), 7168
  // elements, 28672 bytes: running for 250 ms, 2 frames, waits for rank 2".
  static std::string Line(const FlightRecord& record,
                          Deadline::Clock::time_point now);

 private:
  struct Entry {
    uint64_t number = 0;  // Counts operations, from 0.
    FlightOperation operation;
    uint64_t begin = 0;  // Times are in ticks.
    uint64_t first_frame = 0;
    uint64_t last_frame = 0;
    uint64_t end = 0;
  };

  static constexpr size_t kOperations = 9;
  static constexpr size_t kAlgorithms = 4;
  // Written by the thread that runs the operations.
  struct Total {
    std::atomic<uint64_t> count{0}, ticks{0}, sent_bytes{0};
  };

  static FlightRecord WithTimes(const Entry& entry,
                                const TickClock::Scale& scale);

  // Makes the latest entry visible to readers.
  void Show() { ring_[latest_.number % kCapacity].Store(latest_); }

  const TickClock clock_;
  std::vector<SeqLocked<Entry>> ring_;
  std::atomic<uint64_t> begun_{0};
  std::array<std::array<Total, kAlgorithms>, kOperations> totals_;
  std::atomic<uint64_t> sent_bytes_{0};
  // The members below are used only by the thread that runs the operations.
  Entry latest_;
  uint64_t sent_ = 0;  // Payload of the operation.
};

// Overwrites the file `path` with `title` and a line for each record. Each line
// starts with the time of day at which the operation began. UNAVAILABLE: the
// file cannot be written; the message names it.
absl::Status WriteFlightFile(const std::string& path, absl::string_view title,
                             const FlightRecorder& recorder);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RECORDING_FLIGHT_RECORDER_H_
