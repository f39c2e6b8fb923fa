// SPDX-License-Identifier: Apache-2.0
// The collectives a model calls. All ranks of a group call the same operations
// in the same order with the same counts; each call is one sequence number of
// the group. A difference is an error on every rank, never a wrong result; of
// operations in which a rank may only send (broadcast, all_to_all) perhaps not
// before the next one.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_COMMUNICATOR_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/split_rows.h"
#include "cluster/process/deadline.h"
#include "cluster/wire/op_descriptor.h"

namespace ringfleet::cluster {

class TraceRecorder;

// How the operations in halves, which are fused with a product of a matrix,
// cut its rows. The same on all ranks.
struct SplitRowsLayout {
  size_t rows = 0;      // Of all ranks; shared out as SplitRows has it.
  size_t row_size = 0;  // Bytes of a gathered row, elements of a reduced one.
  // About what a frame carries: whole rows where one fits. Each is passed on,
  // and reported, as it comes. 0: DefaultRowSegmentBytes of a gather,
  // DefaultSumSegmentBytes of a reduction.
  size_t segment_bytes = 0;
};

// What a gather in halves reports. It is called by the thread in
// StreamingAllGather.
class StreamingReceiver {
 public:
  // The first bytes of `which` leave this rank.
  virtual void Sends(uint32_t step, ShardPart which) = 0;
  // The next bytes of `which`, in order, in `pieces` of any size.
  virtual void Arrived(ShardPart which,
                       absl::Span<const absl::Span<const char>> pieces) = 0;

 protected:
  ~StreamingReceiver() = default;
};

// What a reduction in halves adds up. It is called by the thread in
// StreamingReduceScatter, while another one computes the partials.
class StreamingSource {
 public:
  virtual void Sends(uint32_t step, ShardPart which) = 0;
  // This rank's summand of `which`, [its rows, row_size] float32. What others
  // have added up is added to it there.
  virtual float* Partial(ShardPart which) = 0;
  // Rows of it, from the first on, that have been computed. After more have,
  // somebody must call Wake.
  virtual size_t Ready(ShardPart which) = 0;

 protected:
  ~StreamingSource() = default;
};

// One rank's view of a group within an epoch. Not thread-safe but for Wake: one
// thread at a time (the executor's, or one that communicates while that one
// computes) calls the operations, because that thread polls.
//
// Where an operation has an input and an output, they are the same memory (in
// place) or do not overlap. Values that were rounded on the wire are rounded
// on every rank, their sender's own copy included, so that all ranks always
// hold the same bits (of what is not a number, that it is none: its sign and
// payload are the processor's choice). `offsets` have size() + 1 ascending
// entries, the same on all ranks: rank r's share is [offsets[r], offsets[r +
// 1]); shares may be empty or uneven.
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

  // Where operations are recorded, and what their caller does between them may
  // be; or null.
  virtual TraceRecorder* trace() const { return nullptr; }

  // output[i] = sum over ranks of input[i], the same bits on all ranks. On a
  // bf16 or int8 wire each partial is rounded once and the sum once; a ring
  // (see AlgorithmTable) sends partial sums in float32 and rounds only the
  // sum. A single rank's input is its sum as it is. `check` must be equal on
  // all ranks; it travels with the frames.
  virtual absl::Status AllReduce(absl::Span<const float> input,
                                 absl::Span<float> output, Encoding encoding,
                                 uint64_t check, Deadline deadline) = 0;

  // Every rank ends with all shares, in rank order, in `output`. `share`
  // is the own one, in place when it lies at its place in `output`.
  virtual absl::Status AllGather(absl::Span<const char> share,
                                 absl::Span<char> output,
                                 absl::Span<const uint64_t> offsets,
                                 Deadline deadline) = 0;

  // The same for float32 values, rounded to the encoding on the way.
  virtual absl::Status AllGather(absl::Span<const float> share,
                                 absl::Span<float> output,
                                 absl::Span<const uint64_t> offsets,
                                 Encoding encoding, Deadline deadline) = 0;

  // `share`, the own one, becomes its part of the sum over ranks of `input`;
  // in place when it lies at its place in `input`, which is then left
  // unspecified elsewhere. A direct one rounds each partial once to the
  // encoding, a ring sends partial sums in float32. `check` as above.
  virtual absl::Status ReduceScatter(absl::Span<float> input,
                                     absl::Span<float> share,
                                     absl::Span<const uint64_t> offsets,
                                     Encoding encoding, uint64_t check,
                                     Deadline deadline) = 0;

  // Sends input[input_offsets[r], input_offsets[r + 1]) to rank r and receives
  // rank r's part for this rank into [output_offsets[r], ...) of `output`,
  // which does not overlap the input. Offsets are this rank's own; what one
  // rank sends to another must be what that one expects. Rows of the encoding
  // are counted from the start of each part.
  virtual absl::Status AllToAll(absl::Span<const float> input,
                                absl::Span<const uint64_t> input_offsets,
                                absl::Span<float> output,
                                absl::Span<const uint64_t> output_offsets,
                                Encoding encoding, Deadline deadline) = 0;
  // The same for bytes, which arrive as they are.
  virtual absl::Status AllToAll(absl::Span<const char> input,
                                absl::Span<const uint64_t> input_offsets,
                                absl::Span<char> output,
                                absl::Span<const uint64_t> output_offsets,
                                Deadline deadline) = 0;

  // `values` of rank `root` replace those of every other rank.
  virtual absl::Status Broadcast(absl::Span<float> values, int root,
                                 Encoding encoding, Deadline deadline) = 0;

  // An all-gather along the ring that reports bytes as they come. Left halves
  // travel to the left: in step s = 0 .. size() - 2 rank r sends half
  // (r + s).kLeft to rank r - 1 and (r - s).kRight to rank r + 1, the own ones
  // first, the others share by share as they arrive. `own` has this rank's
  // rows, row_size bytes each, and is no longer read on return. `check` must be
  // equal on all ranks. Nothing is reported of the own rows.
  virtual absl::Status StreamingAllGather(const SplitRowsLayout& layout,
                                          absl::Span<const char> own,
                                          StreamingReceiver& receiver,
                                          uint64_t check,
                                          Deadline deadline) = 0;

  // The same backwards: rank r ends with the sum over ranks of its own halves,
  // in source.Partial. In step s = 0 .. size() - 2 its summands of
  // (r - 1 - s).kLeft and (r + 1 + s).kRight leave it; the own ones come last.
  // Directly, each goes to its owner, and sums are those of a direct
  // ReduceScatter: in the order of ranks, each summand rounded once to the
  // encoding, the owner's too. Along the ring a summand goes to rank r + 1
  // (kLeft) and r - 1 (kRight), as float32, added to what came in step s - 1:
  // the sum of d.kLeft is made in the order of ranks d + 1, d + 2, ..., d, that
  // of d.kRight in the order d - 1, d - 2, ..., d. Memory of all partials is
  // the caller's again on return.
  virtual absl::Status StreamingReduceScatter(const SplitRowsLayout& layout,
                                              Encoding encoding,
                                              StreamingSource& source,
                                              uint64_t check,
                                              Deadline deadline) = 0;

  // Makes StreamingReduceScatter look at what is ready. From any thread.
  virtual void Wake() = 0;

  // Returns after every rank has entered.
  virtual absl::Status Barrier(Deadline deadline) = 0;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_COMMUNICATOR_H_
