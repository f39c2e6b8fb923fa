// SPDX-License-Identifier: Apache-2.0
// The collectives a model calls. All ranks of a group call the same operations
// in the same order with the same counts; each call is one sequence number of
// the group. A difference is an error on every rank, never a wrong result.
#ifndef RINGFLEET_CLUSTER_COMMUNICATOR_H_
#define RINGFLEET_CLUSTER_COMMUNICATOR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/deadline.h"

namespace ringfleet::cluster {

// Type of elements between ranks; sums are always made in float32.
enum class Wire : uint8_t { kF32, kBf16 };

// One rank's view of a group within an epoch. Not thread-safe: one thread
// (the executor's) calls the operations, because that thread polls.
//
// Errors of every operation:
//   DEADLINE_EXCEEDED: names the operation and the rank that did not answer.
//   UNAVAILABLE: a peer went away.   ABORTED: another rank gave up the epoch.
//   DATA_LOSS: a frame is corrupt.
//   FAILED_PRECONDITION: ranks disagree in operation, count or check.
// After an error the epoch is over on all ranks: every later operation returns
// the same first cause.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;  // Within the group.
  virtual int size() const = 0;

  // data[i] = sum over ranks of data[i], the same bits on all ranks. With bf16
  // the sum is rounded once, and each partial at most once: small operations
  // send rounded partials, large ones sums in float32. A single rank's data is
  // its sum as it is. `check` must be equal on all ranks; it travels with the
  // frames.
  virtual absl::Status AllReduce(absl::Span<float> data, Wire wire,
                                 uint64_t check, Deadline deadline) = 0;

  // Every rank ends with all segments, in rank order, in `data`. Rank r's
  // segment is bytes [offsets[r], offsets[r + 1]); the own one is already in
  // place. `offsets` has size() + 1 entries, the same on all ranks; segments
  // may be empty or uneven.
  virtual absl::Status AllGather(absl::Span<char> data,
                                 absl::Span<const uint64_t> offsets,
                                 Deadline deadline) = 0;

  // Rank r's segment, elements [offsets[r], offsets[r + 1]), becomes the sum
  // over ranks; the rest of `data` is left unspecified. Partial sums travel as
  // float32: no value is rounded to `wire`, but ranks must agree in it.
  virtual absl::Status ReduceScatter(absl::Span<float> data,
                                     absl::Span<const uint64_t> offsets,
                                     Wire wire, Deadline deadline) = 0;

  // Returns after every rank has entered.
  virtual absl::Status Barrier(Deadline deadline) = 0;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COMMUNICATOR_H_
