// SPDX-License-Identifier: Apache-2.0
// One operation of a group, for the algorithms: frames between ranks of the
// group. Each frame is checked to belong to this operation and to be the one
// that comes next. The sender of another frame is blamed for the error.
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

// A communicator's members: all ranks of the world, or one axis of the mesh.
// A member's rank in the group is its position in `ranks`.
struct Group {
  uint32_t id = 0;
  std::vector<int> ranks;
};

// Returns the group of all ranks, in order. Mesh axes have other ids.
Group WorldGroup(int world_size);

// Lives as long as one operation. Allocates nothing. Not thread-safe. Ranks are
// those of the group.
class Exchange {
 public:
  // `head` names the operation: group, sequence, op_descriptor, check, count.
  // Each frame fills the other fields in. `bytes` counts the whole vector on
  // the wire. All pointers must outlive the exchange. `recorder` and `trace`
  // may be null.
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

  // Returns a block for `bytes` of encoded elements, free of earlier
  // operations.
  absl::StatusOr<SendArena::Block*> NextBlock(size_t bytes);
  PayloadLedger& caller_ledger() { return arena_->caller(); }
  // Returns memory for bytes that are not sent.
  char* Scratch(size_t bytes) { return arena_->Scratch(bytes); }
  // Waits until the caller's own memory is no longer being sent.
  absl::Status AwaitCallerMemory();

  // A frame's position in the operation. `offset` counts bytes of the share
  // that `step` exchanges.
  struct Place {
    uint32_t step = 0;
    uint64_t offset = 0;
  };

  // Queues one frame. A frame with an empty `payload` lets ranks that have
  // nothing to send meet and compare their operations. `payload` and `ledger`
  // as for Transport::Send.
  absl::Status Send(int to, Lane lane, Place place,
                    absl::Span<const char> payload, PayloadLedger& ledger);

  // Queues one frame to every other rank. Each rank starts with the next one,
  // which spreads the load over all links. The checksum is made once.
  absl::Status SendToOthers(Place place, absl::Span<const char> payload,
                            PayloadLedger& ledger);

  // Passes a received frame on in `step`, at the same offset.
  absl::Status Forward(int to, Lane lane, uint32_t step,
                       const FrameBody& frame);

  // Returns the next frame of `from`, which must be at `place` and hold
  // `bytes`.
  //
  // Errors: those of Transport::Receive. FAILED_PRECONDITION: `from` is in
  // another operation, at another place, or sends another number of bytes.
  absl::StatusOr<ReceivedFrame> Receive(int from, Lane lane, Place place,
                                        uint64_t bytes);

  // Makes ReceiveAny leave the core to threads that compute.
  void SetBesideCompute() { beside_compute_ = true; }

  // A lane of a rank that frames come from.
  struct Incoming {
    int from = 0;
    Lane lane = Lane::kDirect;
  };
  // Returns the next frame of any source and checks its operation. The caller
  // checks its place with CheckPlace.
  absl::StatusOr<ReceivedFrame> ReceiveAny(absl::Span<const Incoming> sources,
                                           size_t* index);
  // Receives beside threads that compute. Returns null when Transport::Wake was
  // called. `sources` may be empty.
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
  // Records the end of a wait, with `frame` of sources[index] or null.
  void TraceReceived(TraceEvent wait, const ReceivedFrame& frame,
                     absl::Span<const Incoming> sources, size_t index);
  // Ends the event of the frame that came last.
  void EndReceive();
  // Adds the operation to the message of a missed deadline.
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
  TraceRecorder* const trace_;  // Null unless it was on at the beginning.
  const TraceEvent::Thread thread_;
  const TraceScope operation_;
  TraceEvent receive_;  // Without a name: no frame has come.
  bool beside_compute_ = false;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_EXCHANGE_H_
