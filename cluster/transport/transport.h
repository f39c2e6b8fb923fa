// SPDX-License-Identifier: Apache-2.0
// The interface between the algorithms of collectives and the network.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_TRANSPORT_H_
#define RINGFLEET_CLUSTER_TRANSPORT_TRANSPORT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cluster/process/deadline.h"
#include "cluster/transport/payload_ledger.h"
#include "cluster/wire/frame.h"

namespace ringfleet::cluster {

// A lane on which `peer` sends frames to this rank.
struct Source {
  int peer = 0;
  Lane lane = Lane::kDirect;
};

// The links of one rank with all other ranks in one epoch. Only one thread at a
// time may call its functions: the executor's thread, or a thread that
// communicates while the executor's thread computes. The calling thread polls
// the links while it waits. Wake and Abort are thread-safe.
//
// Every two ranks have the lane kDirect. Neighbours in a ring have the lanes
// kRight, to the next rank of the ring, and kLeft, to the previous rank.
//
// The first failure (a lost peer, an unreadable frame, Abort on any rank) ends
// the epoch. Every later call returns the first failure's status.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;  // In the world, like `peer` below.
  virtual int world_size() const = 0;
  virtual uint64_t epoch() const = 0;

  // Queues a frame to `peer` on `lane`. Never blocks. `header` must be
  // complete, with its crc32c. `payload` has at most kMaxPayloadBytes and is
  // not copied. It must stay unchanged until `ledger` is released or `peer` is
  // known to have it. Its memory must exist until `ledger` is released or the
  // transport is destroyed. (If a peer does not read, the destructor waits for
  // a second and logs that memory is still referenced. Until the connection
  // breaks, the kernel may then send the peer later content of the memory.)
  virtual absl::Status Send(int peer, Lane lane, const FrameHeader& header,
                            absl::Span<const char> payload,
                            PayloadLedger& ledger) = 0;

  // Queues the payload of a received frame under another header, if possible
  // without a copy. `frame` may be dropped afterwards.
  virtual absl::Status Forward(int peer, Lane lane, const FrameHeader& header,
                               const FrameBody& frame) = 0;

  // Returns the next frame of the first of `sources` that has a frame, and sets
  // `index` to its index in `sources`. Frames of one source arrive in the order
  // in which they were sent. Their checksums are verified. All links make
  // progress while it waits. A frame must be dropped before the next frame of
  // its source is received, which may need its memory.
  //
  // Errors: DEADLINE_EXCEEDED. UNAVAILABLE: the peer has left. DATA_LOSS: a
  // corrupt frame.
  virtual absl::StatusOr<ReceivedFrame> Receive(
      absl::Span<const Source> sources, Deadline deadline, size_t* index) = 0;

  // Receives as Receive does, but leaves the core to computing threads while it
  // waits. Returns null if Wake was called since it last returned null. If
  // `sources` is empty, waits for Wake only.
  virtual absl::StatusOr<ReceivedFrame> ReceiveUnlessWoken(
      absl::Span<const Source> sources, Deadline deadline, size_t* index) = 0;
  virtual void Wake() = 0;

  // Waits until `ledger` is released. If the epoch has ended, waits for a
  // limited time and returns the cause.
  //
  // Errors: DEADLINE_EXCEEDED.
  virtual absl::Status AwaitReleased(const PayloadLedger& ledger,
                                     Deadline deadline) = 0;

  // Names the rank to blame in the next Abort: a peer that sent a frame of
  // another operation. A later error of Receive or AwaitReleased replaces it.
  virtual void Blame(int peer) {}

  // Ends the epoch on this rank and on all reachable ranks. Only the first
  // cause is kept. Wakes a thread in Receive or AwaitReleased. Thread-safe.
  virtual void Abort(const absl::Status& cause) = 0;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_TRANSPORT_H_
