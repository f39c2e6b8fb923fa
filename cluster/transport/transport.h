// SPDX-License-Identifier: Apache-2.0
// The seam between the collective algorithms and the wire.
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

// Where frames come from.
struct Source {
  int peer = 0;
  Lane lane = Lane::kDirect;
};

// The links of one rank with all others, for one epoch. Its functions belong to
// one thread at a time, because that polls the links while it waits: the
// executor's, or one that communicates while the executor's computes. Only Wake
// and Abort may come from any thread.
//
// The direct lane leads to every rank, the lanes of a ring at least to the
// neighbours in it: kRight carries frames to the next rank of a ring, kLeft to
// the previous one.
//
// The first failure (a lost peer, an unreadable frame, Abort on any rank)
// ends the epoch: from then on every call returns its status.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;  // In the world, as `peer` below.
  virtual int world_size() const = 0;
  virtual uint64_t epoch() const = 0;

  // Queues a frame behind those already sent to `peer` on `lane`; never
  // blocks. The header is complete, crc32c included. `payload`, at most
  // kMaxPayloadBytes, is not copied: it must stay unchanged until `peer` is
  // known to have it or `ledger` is released, and valid until `ledger` is
  // released or the transport is destroyed. (That waits for a second and then
  // logs that a peer which does not read still holds some of it: until its
  // connection breaks, the kernel may send it what lies there by then.)
  virtual absl::Status Send(int peer, Lane lane, const FrameHeader& header,
                            absl::Span<const char> payload,
                            PayloadLedger& ledger) = 0;

  // Sends the payload of a received frame on, under another header, without
  // touching it where the links allow that. `frame` may be dropped afterwards.
  virtual absl::Status Forward(int peer, Lane lane, const FrameHeader& header,
                               const FrameBody& frame) = 0;

  // The next frame of any of `sources`, the first of them that has one, and in
  // `index` which that was. Frames of one source come in the order it sent
  // them, their checksums compared. All links make progress meanwhile. Give up
  // a frame before the next one of its source: that may need its memory.
  //
  // Errors: DEADLINE_EXCEEDED; UNAVAILABLE: the peer left; DATA_LOSS.
  virtual absl::StatusOr<ReceivedFrame> Receive(
      absl::Span<const Source> sources, Deadline deadline, size_t* index) = 0;

  // The same for a thread beside others that compute: it leaves them the core
  // while it waits, and returns null instead of a frame when Wake was called
  // after the last time that it returned null. Without `sources` it waits for
  // Wake alone.
  virtual absl::StatusOr<ReceivedFrame> ReceiveUnlessWoken(
      absl::Span<const Source> sources, Deadline deadline, size_t* index) = 0;
  virtual void Wake() = 0;

  // Waits until nothing refers to the payload of `ledger` any more. It tries
  // so after an abort too, and then returns the abort's cause.
  //
  // Errors: DEADLINE_EXCEEDED.
  virtual absl::Status AwaitReleased(const PayloadLedger& ledger,
                                     Deadline deadline) = 0;

  // Whom the next Abort suspects, unless an error of Receive or AwaitReleased
  // comes before it: a peer that sent what this operation does not.
  virtual void Blame(int peer) {}

  // Ends the epoch here and, as far as they can be reached, on all ranks. The
  // first cause wins; it wakes whoever waits in Receive or AwaitReleased.
  virtual void Abort(const absl::Status& cause) = 0;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_TRANSPORT_H_
