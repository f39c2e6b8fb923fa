// SPDX-License-Identifier: Apache-2.0
// The seam between the collective algorithms and the wire.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_H_
#define RINGFLEET_CLUSTER_TRANSPORT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cluster/deadline.h"
#include "cluster/frame.h"

namespace ringfleet::cluster {

// The links of one rank with all others, for one epoch. Send, Receive and
// Flush belong to one thread at a time, the executor's, because it polls the
// links while it waits; Abort may come from any thread.
//
// The first failure (a lost peer, an unreadable frame, Abort on any rank)
// ends the epoch: from then on every call returns its status.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;  // In the world, as `peer` below.
  virtual int world_size() const = 0;
  virtual uint64_t epoch() const = 0;

  // Queues a frame behind those already sent to `peer`; never blocks. The
  // header is complete, crc32c included. `payload`, at most kMaxPayloadBytes,
  // is not copied: it must stay unchanged until `peer` is known to have it or
  // Flush returned, and valid until Flush returned OK or the transport is
  // destroyed.
  virtual absl::Status Send(int peer, const FrameHeader& header,
                            absl::Span<const char> payload) = 0;

  // The next frame of `peer`, in the order it sent them, its checksum
  // compared. All links make progress meanwhile.
  //
  // Errors: DEADLINE_EXCEEDED; UNAVAILABLE: the peer left; DATA_LOSS.
  virtual absl::StatusOr<ReceivedFrame> Receive(int peer,
                                                Deadline deadline) = 0;

  // Waits until nothing refers to payload memory any more. It tries so after
  // an abort too, and then returns the abort's cause.
  //
  // Errors: DEADLINE_EXCEEDED.
  virtual absl::Status Flush(Deadline deadline) = 0;

  // Ends the epoch here and, as far as they can be reached, on all ranks. The
  // first cause wins; it wakes whoever waits in Receive or Flush.
  virtual void Abort(const absl::Status& cause) = 0;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_H_
