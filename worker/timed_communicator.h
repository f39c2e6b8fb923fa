// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_TIMED_COMMUNICATOR_H_
#define RINGFLEET_WORKER_TIMED_COMMUNICATOR_H_

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

  absl::Status AllReduce(absl::Span<float> data, cluster::Wire wire,
                         uint64_t check) {
    return communicator_->AllReduce(data, wire, check,
                                    cluster::Deadline::After(timeout_));
  }
  absl::Status AllGather(absl::Span<char> data,
                         absl::Span<const uint64_t> offsets) {
    return communicator_->AllGather(data, offsets,
                                    cluster::Deadline::After(timeout_));
  }

 private:
  cluster::Communicator* const communicator_;
  const absl::Duration timeout_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_TIMED_COMMUNICATOR_H_
