// SPDX-License-Identifier: Apache-2.0
// The seam between the algorithms of collectives and the wire.
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

// One stream of frames.
struct Source {
  int peer = 0;
  Lane lane = Lane::kDirect;
};

// The links of one rank with all others, for one epoch. One thread at a time
// calls its functions, because that thread polls the links while it waits: the
// executor's, or a thread that communicates while the executor's computes. Wake
// and Abort may come from any thread.
//
// The direct lane leads to every rank. The lanes of a ring lead at least to the
// neighbours in it: kRight to the next rank of the ring, kLeft to the previous
// one.
//
// The first failure (a lost peer, an unreadable frame, Abort on any rank) ends
// the epoch. Every later call returns its status.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;  // In the world, as `peer` below.
  virtual int world_size() const = 0;
  virtual uint64_t epoch() const = 0;

  // Queues a frame behind those already sent to `peer` on `lane`. Never blocks.
  // The header is complete, with its crc32c. `payload`, at most
  // kMaxPayloadBytes, is not copied: it must stay unchanged until `peer` is
  // known to have it or `ledger` is released, and valid until `ledger` is
  // released or the transport is destroyed. (The destructor waits for a second,
  // then logs that a peer which does not read still holds some memory. Until
  // the connection breaks, the kernel may send that peer the memory's later
  // content.)
  virtual absl::Status Send(int peer, Lane lane, const FrameHeader& header,
                            absl::Span<const char> payload,
                            PayloadLedger& ledger) = 0;

  // Sends the payload of a received frame under another header, without a copy
  // of the payload if the links allow. `frame` may be dropped afterwards.
  virtual absl::Status Forward(int peer, Lane lane, const FrameHeader& header,
                               const FrameBody& frame) = 0;

  // Returns the next frame of the first of `sources` that has one; `index`
  // tells which. Frames of one source come in the order in which they were
  // sent, with their checksums compared. All links make progress meanwhile.
  // Drop a frame before the next one of its source, which may need its memory.
  //
  // Errors: DEADLINE_EXCEEDED; UNAVAILABLE: the peer left; DATA_LOSS.
  virtual absl::StatusOr<ReceivedFrame> Receive(
      absl::Span<const Source> sources, Deadline deadline, size_t* index) = 0;

  // Receives in a thread beside threads that compute, and leaves them the core
  // while it waits. Returns null instead of a frame when Wake was called since
  // it last returned null. Without `sources` it waits for Wake alone.
  virtual absl::StatusOr<ReceivedFrame> ReceiveUnlessWoken(
      absl::Span<const Source> sources, Deadline deadline, size_t* index) = 0;
  virtual void Wake() = 0;

  // Waits until nothing refers to the payload of `ledger` any more. After an
  // abort it waits too, for a while, and returns the abort's cause.
  //
  // Errors: DEADLINE_EXCEEDED.
  virtual absl::Status AwaitReleased(const PayloadLedger& ledger,
                                     Deadline deadline) = 0;

  // Names the suspect of the next Abort: a peer that sent a frame of another
  // operation. A later error of Receive or AwaitReleased names another.
  virtual void Blame(int peer) {}

  // Ends the epoch on this rank, and on all ranks that can be reached. The
  // first cause wins. It wakes a thread in Receive or AwaitReleased.
  virtual void Abort(const absl::Status& cause) = 0;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_TRANSPORT_H_
