// SPDX-License-Identifier: Apache-2.0
// Implements Communicator for one group over a transport.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_GROUP_COMMUNICATOR_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_GROUP_COMMUNICATOR_H_

#include <cstdint>

#include "cluster/collectives/algorithm_table.h"
#include "cluster/collectives/communicator.h"
#include "cluster/collectives/exchange.h"
#include "cluster/collectives/send_arena.h"
#include "cluster/recording/flight_recorder.h"
#include "cluster/recording/trace_recorder.h"
#include "cluster/transport/transport.h"
#include "cluster/wire/wire_format.h"

namespace ringfleet::cluster {

// Several communicators may share a transport. Then every two ranks must call
// the operations that both take part in, in the same order.
//
// An operation that fails aborts the transport with its error. On return no
// frame points at the caller's buffers, unless a peer has stopped reading and
// its socket is full. In such a case the transport's destructor releases the
// buffers.
class GroupCommunicator : public Communicator {
 public:
  // `transport`, `recorder` and `trace` must outlive the communicator.
  // `recorder` and `trace` may be null. `group.ranks` must be distinct ranks of
  // the transport's world and include the transport's own rank.
  GroupCommunicator(Transport* transport, Group group, AlgorithmTable table,
                    FlightRecorder* recorder, TraceRecorder* trace = nullptr);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_.ranks.size()); }
  TraceRecorder* trace() const override { return trace_; }

  absl::Status AllReduce(absl::Span<const float> input,
                         absl::Span<float> output, Encoding encoding,
                         uint64_t check, Deadline deadline) override;
  absl::Status AllGather(absl::Span<const char> share, absl::Span<char> output,
                         absl::Span<const uint64_t> offsets,
                         Deadline deadline) override;
  absl::Status AllGather(absl::Span<const float> share,
                         absl::Span<float> output,
                         absl::Span<const uint64_t> offsets, Encoding encoding,
                         Deadline deadline) override;
  absl::Status ReduceScatter(absl::Span<float> input, absl::Span<float> share,
                             absl::Span<const uint64_t> offsets,
                             Encoding encoding, uint64_t check,
                             Deadline deadline) override;
  absl::Status AllToAll(absl::Span<const float> input,
                        absl::Span<const uint64_t> input_offsets,
                        absl::Span<float> output,
                        absl::Span<const uint64_t> output_offsets,
                        Encoding encoding, Deadline deadline) override;
  absl::Status AllToAll(absl::Span<const char> input,
                        absl::Span<const uint64_t> input_offsets,
                        absl::Span<char> output,
                        absl::Span<const uint64_t> output_offsets,
                        Deadline deadline) override;
  absl::Status Broadcast(absl::Span<float> values, int root, Encoding encoding,
                         Deadline deadline) override;
  absl::Status StreamingAllGather(const SplitRowsLayout& layout,
                                  absl::Span<const char> own,
                                  StreamingReceiver& receiver, uint64_t check,
                                  Deadline deadline) override;
  absl::Status StreamingReduceScatter(const SplitRowsLayout& layout,
                                      Encoding encoding,
                                      StreamingSource& source, uint64_t check,
                                      Deadline deadline) override;
  void Wake() override { transport_->Wake(); }
  absl::Status Barrier(Deadline deadline) override;

 private:
  Exchange Begin(const OpDescriptor& descriptor, uint64_t check, uint64_t count,
                 uint64_t bytes, Deadline deadline);
  // Returns `status`. If it is an error, first ends the epoch.
  absl::Status End(absl::Status status);
  // Checks that `offsets` cut `limit` elements into a share for each rank.
  // Errors: INVALID_ARGUMENT.
  absl::Status CheckOffsets(absl::Span<const uint64_t> offsets,
                            uint64_t limit) const;
  // Calls CheckOffsets. Also checks that this rank's share has `own` elements,
  // and that every offset is a border of the format.
  absl::Status CheckShares(absl::Span<const uint64_t> offsets, uint64_t limit,
                           size_t own, const WireFormat& format) const;
  template <typename Format, typename Value>
  absl::Status Gather(const Format& format, Wire wire,
                      absl::Span<const Value> share, absl::Span<Value> output,
                      absl::Span<const uint64_t> offsets, Deadline deadline);

  template <typename Format, typename Value>
  absl::Status ExchangeParts(const Format& format, Wire wire,
                             absl::Span<const Value> input,
                             absl::Span<const uint64_t> input_offsets,
                             absl::Span<Value> output,
                             absl::Span<const uint64_t> output_offsets,
                             Deadline deadline);

  Transport* const transport_;
  const Group group_;
  const AlgorithmTable table_;
  FlightRecorder* const recorder_;
  TraceRecorder* const trace_;
  const int rank_;
  uint64_t sequence_ = 0;  // Number of operations begun.
  bool begun_ = false;     // True while an operation runs.
  SendArena arena_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_GROUP_COMMUNICATOR_H_
