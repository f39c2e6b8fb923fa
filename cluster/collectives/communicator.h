// SPDX-License-Identifier: Apache-2.0
// The collectives that a model calls. All ranks of a group must call the same
// operations in the same order with the same numbers of elements. Each call
// takes the group's next sequence number. Calls that differ between ranks fail
// on every rank and never give a wrong result. In broadcast and all_to_all some
// ranks only send. A rank that only sends may not fail before its next
// operation.
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

// The cut of a matrix's rows by StreamingAllGather and StreamingReduceScatter,
// which are fused with a product. All ranks must pass equal cuts.
struct SplitRowsLayout {
  size_t rows = 0;      // All ranks' rows; SplitRows divides them.
  size_t row_size = 0;  // In bytes for a gather, in elements for a sum.
  // Approximate bytes of a frame. A frame has whole rows, unless a row is
  // longer than a frame may be. A rank passes on and reports each frame when it
  // arrives. 0: DefaultRowSegmentBytes for a gather, DefaultSumSegmentBytes for
  // a reduction.
  size_t segment_bytes = 0;
};

// Takes the rows that StreamingAllGather receives. Called in the thread that
// runs StreamingAllGather.
class StreamingReceiver {
 public:
  // Takes the next bytes of part `which`, in order, as `pieces` of any size.
  virtual void Arrived(ShardPart which,
                       absl::Span<const absl::Span<const char>> pieces) = 0;

 protected:
  ~StreamingReceiver() = default;
};

// Gives StreamingReduceScatter the rows to sum. Called in the thread that runs
// StreamingReduceScatter, while another thread computes the rows.
class StreamingSource {
 public:
  // Returns this rank's summand of part `which`: float32 [rows of the part,
  // row_size]. The operation adds the sum of other ranks into this memory.
  virtual float* Partial(ShardPart which) = 0;
  // Returns n if the first n rows of part `which` have been computed. The
  // computing thread calls Communicator::Wake when n has grown.
  virtual size_t Ready(ShardPart which) = 0;

 protected:
  ~StreamingSource() = default;
};

// One rank's view of a group within an epoch. Only one thread at a time may
// call operations: the executor's thread, or a thread that communicates while
// the executor's thread computes. The calling thread polls the transport. Only
// Wake is thread-safe.
//
// Input and output of an operation must be the same memory (in place) or not
// overlap. A sender rounds its own copy as the wire does, so all ranks hold
// equal bits. NaNs stay NaNs, but their sign and payload may differ between
// ranks. `offsets` have size() + 1 ascending entries, equal on all ranks. Rank
// r's share is [offsets[r], offsets[r + 1]). Shares may be empty or uneven.
//
// Errors of every operation:
//   DEADLINE_EXCEEDED: names the operation and the rank that did not answer.
//   UNAVAILABLE: a peer went away.   ABORTED: another rank gave up the epoch.
//   DATA_LOSS: a frame is corrupt.
//   FAILED_PRECONDITION: ranks differ in operation, number of elements or
//   check.
// An error ends the epoch on all ranks. Every later operation returns the error
// that came first.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;  // Within the group.
  virtual int size() const = 0;

  // Returns the recorder that records the operations, or null. The caller may
  // record its own events there.
  virtual TraceRecorder* trace() const { return nullptr; }

  // Computes output[i] = sum over ranks of input[i], with equal bits on all
  // ranks. One shot and two shot on a bf16 or int8 wire round each rank's input
  // once and the sum once. A ring (see AlgorithmTable) sends partial sums in
  // float32 and rounds only the sum. In a group of one rank the sum is the
  // input, unrounded. `check` travels with the frames and must be equal on all
  // ranks.
  virtual absl::Status AllReduce(absl::Span<const float> input,
                                 absl::Span<float> output, Encoding encoding,
                                 uint64_t check, Deadline deadline) = 0;

  // Puts the shares of all ranks, in rank order, into `output`. `share` is this
  // rank's share and may lie at its position in `output`.
  virtual absl::Status AllGather(absl::Span<const char> share,
                                 absl::Span<char> output,
                                 absl::Span<const uint64_t> offsets,
                                 Deadline deadline) = 0;

  // Gathers float32 values, rounded to `encoding`.
  virtual absl::Status AllGather(absl::Span<const float> share,
                                 absl::Span<float> output,
                                 absl::Span<const uint64_t> offsets,
                                 Encoding encoding, Deadline deadline) = 0;

  // Puts this rank's share of the sum over ranks of `input` into `share`.
  // `share` may lie at its position in `input`. All other elements of `input`
  // have unspecified values on return. One shot rounds each rank's input once
  // to `encoding`. A ring sends partial sums in float32. `check` must be equal
  // on all ranks.
  virtual absl::Status ReduceScatter(absl::Span<float> input,
                                     absl::Span<float> share,
                                     absl::Span<const uint64_t> offsets,
                                     Encoding encoding, uint64_t check,
                                     Deadline deadline) = 0;

  // Sends input[input_offsets[r], input_offsets[r + 1]) to rank r. Receives
  // rank r's part for this rank into output[output_offsets[r],
  // output_offsets[r + 1]). `output` must not overlap `input`. Offsets may
  // differ between ranks, but the sender and the receiver of a part must give
  // it one size. Rows of the encoding start at the start of each part.
  virtual absl::Status AllToAll(absl::Span<const float> input,
                                absl::Span<const uint64_t> input_offsets,
                                absl::Span<float> output,
                                absl::Span<const uint64_t> output_offsets,
                                Encoding encoding, Deadline deadline) = 0;
  // Exchanges bytes. They arrive unchanged.
  virtual absl::Status AllToAll(absl::Span<const char> input,
                                absl::Span<const uint64_t> input_offsets,
                                absl::Span<char> output,
                                absl::Span<const uint64_t> output_offsets,
                                Deadline deadline) = 0;

  // Copies the `values` of rank `root` to every other rank.
  virtual absl::Status Broadcast(absl::Span<float> values, int root,
                                 Encoding encoding, Deadline deadline) = 0;

  // Gathers rows along the ring and reports bytes when they arrive. Ranks and
  // shards count modulo size(). In step s = 0 .. size() - 2 rank r sends part
  // (r + s).kLeft to rank r - 1 and part (r - s).kRight to rank r + 1. Step 0
  // sends this rank's own parts. Each later step passes on the parts of the
  // step before, frame by frame. `own` has this rank's rows, row_size bytes
  // each. The own rows are not reported. On success no queued frame refers to
  // `own` any more.
  // `check` must be equal on all ranks.
  virtual absl::Status StreamingAllGather(const SplitRowsLayout& layout,
                                          absl::Span<const char> own,
                                          StreamingReceiver& receiver,
                                          uint64_t check,
                                          Deadline deadline) = 0;

  // Puts the sum over ranks of this rank's two parts into the memory of
  // source.Partial. In step s = 0 .. size() - 2 rank r sends its summands of
  // the parts (r - 1 - s).kLeft and (r + 1 + s).kRight. Rank r adds its
  // summands of its own parts last. On success no queued frame refers
  // to the memory of source.Partial any more.
  //   one shot: each summand goes to the part's owner, rounded once to
  //     `encoding`. The owner rounds its own summand, too, and adds in rank
  //     order. The bits are those of a one-shot ReduceScatter.
  //   ring: rank r adds its summand to the sum that arrived in step s - 1. The
  //     result goes as float32 to rank r + 1 (kLeft) or r - 1 (kRight). Part
  //     d.kLeft is summed in the order of ranks d + 1, d + 2, ..., d. Part
  //     d.kRight is summed in the order d - 1, d - 2, ..., d.
  virtual absl::Status StreamingReduceScatter(const SplitRowsLayout& layout,
                                              Encoding encoding,
                                              StreamingSource& source,
                                              uint64_t check,
                                              Deadline deadline) = 0;

  // Makes StreamingReduceScatter ask source.Ready again. Thread-safe.
  virtual void Wake() = 0;

  // Returns once every rank of the group has called Barrier.
  virtual absl::Status Barrier(Deadline deadline) = 0;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_COMMUNICATOR_H_
