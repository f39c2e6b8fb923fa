// SPDX-License-Identifier: Apache-2.0
// All-reduce: every rank ends with the sum over ranks, the same bits on all.
#ifndef RINGFLEET_CLUSTER_ALL_REDUCE_H_
#define RINGFLEET_CLUSTER_ALL_REDUCE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/exchange.h"

namespace ringfleet::cluster {

// Memory that the operations of one communicator share, grown to the largest.
struct ReduceScratch {
  std::vector<char> wire;         // What this rank sends, as it is sent.
  std::vector<uint64_t> offsets;  // Of the segments of a ring.
};

// Every rank sends its whole vector, rounded to `wire`, to every other, and
// each adds all of them, its own as it was sent, in rank order 0, 1, ... in
// float32. With bf16 the sum is rounded to bf16 once. Both algorithms return
// once nothing of `data` and `scratch` is still being sent. Errors: those of
// Exchange.
absl::Status OneShotAllReduce(Exchange& exchange, absl::Span<float> data,
                              Wire wire, ReduceScratch& scratch);

// A reduce-scatter and an all-gather over equal segments. Partial sums travel
// as float32: rounding at every hop would add up. With bf16 the owner of a
// segment rounds its sum once and keeps what it sends.
absl::Status RingAllReduce(Exchange& exchange, absl::Span<float> data,
                           Wire wire, ReduceScratch& scratch);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_ALL_REDUCE_H_
