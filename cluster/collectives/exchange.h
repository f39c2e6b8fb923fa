// SPDX-License-Identifier: Apache-2.0
// Sends and receives the frames of one operation of a group, for the
// algorithms. Checks that each received frame belongs to this operation and is
// the next one from its sender. If a frame is not, the error names the sender.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_EXCHANGE_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_EXCHANGE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cluster/collectives/send_arena.h"
#include "cluster/process/deadline.h"
#include "cluster/recording/flight_recorder.h"
#include "cluster/recording/trace_recorder.h"
#include "cluster/transport/transport.h"
#include "cluster/wire/frame.h"

namespace ringfleet::cluster {

// The members of a communicator: all ranks of the world, or the ranks along one
// axis of the mesh. `ranks` has world ranks. A member's rank in the group is
// its index in `ranks`, from 0.
struct Group {
  uint32_t id = 0;
  std::vector<int> ranks;
};

// Returns the group of all ranks, in ascending order. Its id is 0.
Group WorldGroup(int world_size);

// One operation. Ranks in this class are ranks in the group. Allocates nothing.
// Not thread-safe.
class Exchange {
 public:
  // `head` has the fields that all frames of the operation share: group,
  // sequence, op_descriptor, check and count. `bytes` is the encoded size of
  // the whole vector. All pointers must outlive the exchange. `recorder` and
  // `trace` may be null.
  Exchange(Transport* transport, const Group* group, int rank, FrameHeader head,
           uint64_t bytes, Deadline deadline, SendArena* arena,
           FlightRecorder* recorder, TraceRecorder* trace);
  // Ends the operation's events in the trace.
  ~Exchange() { EndReceive(); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(group_->ranks.size()); }
  int Wrap(int rank) const { return ((rank % size()) + size()) % size(); }

  // Returns a block for `bytes` of encoded elements. No frame of an earlier
  // operation points at it.
  absl::StatusOr<SendArena::Block*> NextBlock(size_t bytes);
  PayloadLedger& caller_ledger() { return arena_->caller(); }
  // Returns memory for `bytes` that are not sent.
  char* Scratch(size_t bytes) { return arena_->Scratch(bytes); }
  // Waits until no queued frame points at the caller's memory.
  absl::Status AwaitCallerMemory();

  // A frame's position in the operation. `offset` is the frame's first byte
  // within the data of `step`.
  struct Place {
    uint32_t step = 0;
    uint64_t offset = 0;
  };

  // Queues one frame. A rank without data sends a frame with an empty
  // `payload`, so that the receiver can compare operations. Transport::Send
  // explains `payload` and `ledger`.
  absl::Status Send(int to, Lane lane, Place place,
                    absl::Span<const char> payload, PayloadLedger& ledger);

  // Queues one frame to every other rank. Rank r starts with rank r + 1, which
  // spreads the load over all links. The checksum is computed once.
  absl::Status SendToOthers(Place place, absl::Span<const char> payload,
                            PayloadLedger& ledger);

  // Queues a received frame to rank `to` as a frame of `step`, at its offset.
  absl::Status Forward(int to, Lane lane, uint32_t step,
                       const FrameBody& frame);

  // Returns the next frame from rank `from`. The frame must be at `place` and
  // hold `bytes`.
  //
  // Errors: those of Transport::Receive. FAILED_PRECONDITION: the frame belongs
  // to another operation, is at another place, or holds another number of
  // bytes.
  absl::StatusOr<ReceivedFrame> Receive(int from, Lane lane, Place place,
                                        uint64_t bytes);

  // Makes ReceiveAny yield the core to computing threads while it waits.
  void SetBesideCompute() { beside_compute_ = true; }

  // A lane on which rank `from` sends to this rank.
  struct Incoming {
    int from = 0;
    Lane lane = Lane::kDirect;
  };
  // Returns the next frame of any source, and sets `index` to its index in
  // `sources`. Checks the frame's operation. The caller must check the frame's
  // place with CheckPlace.
  absl::StatusOr<ReceivedFrame> ReceiveAny(absl::Span<const Incoming> sources,
                                           size_t* index);
  // Receives as ReceiveAny does, yielding the core to computing threads.
  // Returns null if Transport::Wake was called. `sources` may be empty.
  absl::StatusOr<ReceivedFrame> ReceiveUnlessWoken(
      absl::Span<const Incoming> sources, size_t* index);
  absl::Status CheckPlace(const FrameBody& frame, int from, Place place,
                          uint64_t bytes) const;

 private:
  using ReceiveFunction = absl::StatusOr<ReceivedFrame> (Transport::*)(
      absl::Span<const Source>, Deadline, size_t*);
  absl::StatusOr<ReceivedFrame> ReceiveBy(ReceiveFunction receive,
                                          absl::Span<const Incoming> sources,
                                          size_t* index);
  FrameHeader Seal(Lane lane, Place place, uint32_t payload_crc,
                   size_t payload_bytes) const;
  // Returns an event without times. `peer` is a rank of the group; -1: none.
  TraceEvent Event(absl::string_view name, TraceEvent::Kind kind, int peer,
                   uint64_t bytes) const;
  // Records the end of `wait`. `frame` came from sources[index], or is null.
  void TraceReceived(TraceEvent wait, const ReceivedFrame& frame,
                     absl::Span<const Incoming> sources, size_t index);
  // Ends the trace event of the last received frame.
  void EndReceive();
  // Adds the operation's name to the message of a missed deadline.
  absl::Status NameOperation(const absl::Status& status) const;
  absl::Status CheckSameOperation(const FrameHeader& theirs, int peer,
                                  Lane lane) const;

  Transport* const transport_;
  const Group* const group_;
  const int rank_;
  FrameHeader head_;
  const Deadline deadline_;
  SendArena* const arena_;
  FlightRecorder* const recorder_;
  TraceRecorder* const trace_;  // Null if it was off at construction.
  const TraceEvent::Thread thread_;
  const TraceScope operation_;
  TraceEvent receive_;  // Without a name: no frame has come.
  bool beside_compute_ = false;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_EXCHANGE_H_
