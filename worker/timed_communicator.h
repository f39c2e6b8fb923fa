// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_TIMED_COMMUNICATOR_H_
#define RINGFLEET_WORKER_TIMED_COMMUNICATOR_H_

#include <vector>

#include "absl/time/time.h"
#include "cluster/communicator.h"

namespace ringfleet::worker {

// A communicator with the time that each operation of a step is given: a peer
// that computes longer than that between two of them counts as lost.
class TimedCommunicator {
 public:
  TimedCommunicator(cluster::Communicator* communicator, absl::Duration timeout)
      : communicator_(communicator), timeout_(timeout) {}

  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }
  cluster::TraceRecorder* trace() const { return communicator_->trace(); }

  // In place.
  absl::Status AllReduce(absl::Span<float> data, cluster::Encoding encoding,
                         uint64_t check) {
    return communicator_->AllReduce(data, data, encoding, check,
                                    cluster::Deadline::After(timeout_));
  }
  // In place.
  absl::Status AllGather(absl::Span<char> data,
                         absl::Span<const uint64_t> offsets) {
    const uint64_t begin = offsets[rank()];
    return communicator_->AllGather(
        data.subspan(begin, offsets[rank() + 1] - begin), data, offsets,
        cluster::Deadline::After(timeout_));
  }
  // `segment` becomes this rank's part of the sum over ranks of `input`, which
  // is left unspecified.
  absl::Status ReduceScatter(absl::Span<float> input, absl::Span<float> segment,
                             absl::Span<const uint64_t> offsets,
                             cluster::Encoding encoding) {
    return communicator_->ReduceScatter(input, segment, offsets, encoding,
                                        cluster::Deadline::After(timeout_));
  }
  // Memory for what is being gathered: it outlives a failed operation, whose
  // frames a slow peer may still be reading.
  std::vector<char>& gather_buffer() { return gather_buffer_; }
  // Borders of the ranks' parts in it.
  std::vector<uint64_t>& gather_offsets() { return gather_offsets_; }

 private:
  cluster::Communicator* const communicator_;
  const absl::Duration timeout_;
  std::vector<char> gather_buffer_;
  std::vector<uint64_t> gather_offsets_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_TIMED_COMMUNICATOR_H_
