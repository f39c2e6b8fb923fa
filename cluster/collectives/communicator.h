// SPDX-License-Identifier: Apache-2.0
// The collectives that a model calls. All ranks of a group call the same
// operations in the same order with the same counts. Each call is one sequence
// number of the group. A difference is an error on every rank, never a wrong
// result. In operations in which a rank may only send (broadcast, all_to_all)
// that rank may see the error at the next operation.
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

// The cut of a matrix's rows by the streaming operations, which are fused with
// a product. All ranks pass the same cut.
struct SplitRowsLayout {
  size_t rows = 0;      // All ranks' rows; SplitRows gives each its own.
  size_t row_size = 0;  // Bytes of a gathered row, elements of a reduced one.
  // Approximate bytes of a frame, which has whole rows if one row fits. Each
  // frame is passed on, and reported, as it comes. 0: DefaultRowSegmentBytes
  // for a gather, DefaultSumSegmentBytes for a reduction.
  size_t segment_bytes = 0;
};

// Takes the reports of StreamingAllGather, in the thread that calls it.
class StreamingReceiver {
 public:
  // Reports the next bytes of `which`, in order, in `pieces` of any size.
  virtual void Arrived(ShardPart which,
                       absl::Span<const absl::Span<const char>> pieces) = 0;

 protected:
  ~StreamingReceiver() = default;
};

// Gives StreamingReduceScatter the summands, in the thread that calls it, while
// another thread computes them.
class StreamingSource {
 public:
  // Returns this rank's summand of `which`, [its rows, row_size] float32. The
  // sum of other ranks is added to it in this memory.
  virtual float* Partial(ShardPart which) = 0;
  // Returns how many rows of `which`, from the first on, have been computed.
  // The computing thread calls Wake when there are more rows.
  virtual size_t Ready(ShardPart which) = 0;

 protected:
  ~StreamingSource() = default;
};

// One rank's view of a group within an epoch. One thread at a time calls the
// operations, because that thread polls: the executor's, or a thread that
// communicates while the executor's computes. Only Wake is thread-safe.
//
// Input and output of an operation are the same memory (in place) or do not
// overlap. Values that were rounded on the wire are rounded on every rank, also
// in their sender's copy, so that all ranks always hold the same bits. NaNs
// stay NaNs, but their sign and payload may differ between ranks. `offsets`
// have size() + 1 ascending entries, the same on all ranks. Rank r's share is
// [offsets[r], offsets[r + 1]). Shares may be empty or uneven.
//
// Errors of every operation:
//   DEADLINE_EXCEEDED: names the operation and the rank that did not answer.
//   UNAVAILABLE: a peer went away.   ABORTED: another rank gave up the epoch.
//   DATA_LOSS: a frame is corrupt.
//   FAILED_PRECONDITION: ranks disagree in operation, count or check.
// An error ends the epoch on all ranks. Every later operation returns the first
// cause.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;  // Within the group.
  virtual int size() const = 0;

  // Returns the recorder of the operations, which may record its caller's
  // events too; or null.
  virtual TraceRecorder* trace() const { return nullptr; }

  // Computes output[i] = sum over ranks of input[i], with the same bits on all
  // ranks. On a bf16 or int8 wire each partial is rounded once and the sum
  // once. A ring (see AlgorithmTable) sends partial sums in float32 and rounds
  // only the sum. A single rank's sum is its input without rounding. `check`
  // travels with the frames and must be equal on all ranks.
  virtual absl::Status AllReduce(absl::Span<const float> input,
                                 absl::Span<float> output, Encoding encoding,
                                 uint64_t check, Deadline deadline) = 0;

  // Puts the shares of all ranks, in rank order, into `output`. `share` is the
  // own share. `share` may lie at its position in `output`.
  virtual absl::Status AllGather(absl::Span<const char> share,
                                 absl::Span<char> output,
                                 absl::Span<const uint64_t> offsets,
                                 Deadline deadline) = 0;

  // Gathers float32 values, rounded to the encoding on the way.
  virtual absl::Status AllGather(absl::Span<const float> share,
                                 absl::Span<float> output,
                                 absl::Span<const uint64_t> offsets,
                                 Encoding encoding, Deadline deadline) = 0;

  // Puts the own share of the sum over ranks of `input` into `share`. `share`
  // may lie at its position in `input`. The other elements of `input` are
  // unspecified then. One shot rounds each partial once to the encoding; a ring
  // sends partial sums in float32. `check` as in AllReduce.
  virtual absl::Status ReduceScatter(absl::Span<float> input,
                                     absl::Span<float> share,
                                     absl::Span<const uint64_t> offsets,
                                     Encoding encoding, uint64_t check,
                                     Deadline deadline) = 0;

  // Sends input[input_offsets[r], input_offsets[r + 1]) to rank r, and receives
  // rank r's part for this rank into [output_offsets[r], ...) of `output`,
  // which does not overlap the input. Offsets are this rank's own. Sender and
  // receiver of a part must agree in its size. Rows of the encoding are counted
  // from the start of each part.
  virtual absl::Status AllToAll(absl::Span<const float> input,
                                absl::Span<const uint64_t> input_offsets,
                                absl::Span<float> output,
                                absl::Span<const uint64_t> output_offsets,
                                Encoding encoding, Deadline deadline) = 0;
  // Exchanges bytes, which arrive unchanged.
  virtual absl::Status AllToAll(absl::Span<const char> input,
                                absl::Span<const uint64_t> input_offsets,
                                absl::Span<char> output,
                                absl::Span<const uint64_t> output_offsets,
                                Deadline deadline) = 0;

  // Copies the `values` of rank `root` to every other rank.
  virtual absl::Status Broadcast(absl::Span<float> values, int root,
                                 Encoding encoding, Deadline deadline) = 0;

  // Gathers rows along the ring and reports bytes as they come. Left parts
  // travel to the left: in step s = 0 .. size() - 2 rank r sends part
  // (r + s).kLeft to rank r - 1 and (r - s).kRight to rank r + 1. The own parts
  // leave first; the others leave frame by frame as they arrive. `own` has this
  // rank's rows, row_size bytes each, and is no longer read on return. `check`
  // must be equal on all ranks. The own rows are not reported.
  virtual absl::Status StreamingAllGather(const SplitRowsLayout& layout,
                                          absl::Span<const char> own,
                                          StreamingReceiver& receiver,
                                          uint64_t check,
                                          Deadline deadline) = 0;

  // Puts the sum over ranks of the own parts into source.Partial, in the steps
  // of StreamingAllGather backwards. In step s = 0 .. size() - 2 this rank's
  // summands of (r - 1 - s).kLeft and (r + 1 + s).kRight leave it. The own
  // summands come last. Memory of all partials is the caller's again on return.
  //   one shot: each summand goes to its owner, rounded once to the encoding.
  //     The owner adds in rank order and rounds its own summand too, so the
  //     bits are those of a one-shot ReduceScatter.
  //   ring: a summand goes to rank r + 1 (kLeft) or r - 1 (kRight) as float32,
  //     added to the sum that came in step s - 1. The sum of d.kLeft is made in
  //     the order of ranks d + 1, d + 2, ..., d, and the sum of d.kRight in the
  //     order d - 1, d - 2, ..., d.
  virtual absl::Status StreamingReduceScatter(const SplitRowsLayout& layout,
                                              Encoding encoding,
                                              StreamingSource& source,
                                              uint64_t check,
                                              Deadline deadline) = 0;

  // Makes StreamingReduceScatter ask its source again. From any thread.
  virtual void Wake() = 0;

  // Returns after every rank has entered.
  virtual absl::Status Barrier(Deadline deadline) = 0;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_COMMUNICATOR_H_
