// SPDX-License-Identifier: Apache-2.0
// The collectives of one group over a transport.
#ifndef RINGFLEET_CLUSTER_GROUP_COMMUNICATOR_H_
#define RINGFLEET_CLUSTER_GROUP_COMMUNICATOR_H_

#include <cstdint>

#include "cluster/all_reduce.h"
#include "cluster/communicator.h"
#include "cluster/exchange.h"
#include "cluster/transport.h"

namespace ringfleet::cluster {

// By operation, bytes and ranks only, never by time: the order of a sum, and
// so its last bits, must not change from run to run. `bytes` is what one rank
// contributes to an all-reduce, as sent, or the whole of a gathered buffer.
Algorithm ChooseAlgorithm(Operation operation, uint64_t bytes, int size);

// Several communicators may share a transport when every two ranks enter the
// operations that they have in common in the same order.
//
// When an operation fails, the transport has been aborted with that cause, and
// buffers are the caller's again unless a peer that does not read holds a
// socket full; destroying the transport settles that too.
class GroupCommunicator : public Communicator {
 public:
  // `transport` must outlive the communicator. Requires that `group.ranks` are
  // distinct ranks of the transport's world and contain its own.
  GroupCommunicator(Transport* transport, Group group);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_.ranks.size()); }

  absl::Status AllReduce(absl::Span<float> data, Wire wire, uint64_t check,
                         Deadline deadline) override;
  absl::Status AllGather(absl::Span<char> data,
                         absl::Span<const uint64_t> offsets,
                         Deadline deadline) override;
  absl::Status ReduceScatter(absl::Span<float> data,
                             absl::Span<const uint64_t> offsets, Wire wire,
                             Deadline deadline) override;
  absl::Status Barrier(Deadline deadline) override;

 private:
  Exchange Begin(const OpDescriptor& descriptor, uint64_t check, uint64_t count,
                 Deadline deadline);
  // Passes `status` on; an error ends the epoch first.
  absl::Status End(absl::Status status);
  // INVALID_ARGUMENT unless `offsets` are segments of `limit` bytes/elements.
  absl::Status CheckOffsets(absl::Span<const uint64_t> offsets,
                            uint64_t limit) const;

  Transport* const transport_;
  const Group group_;
  const int rank_;
  uint64_t sequence_ = 0;  // Operations begun.
  ReduceScratch scratch_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_GROUP_COMMUNICATOR_H_
