// SPDX-License-Identifier: Apache-2.0
// All-gather: every rank ends with the shares of all ranks, in rank order.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_ALL_GATHER_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_ALL_GATHER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/exchange.h"
#include "cluster/collectives/frame_cuts.h"

namespace ringfleet::cluster {

// Sends this rank's `share` directly to all other ranks, and receives their
// shares into `output`. `share` may lie at its position in `output`. No frame
// points at `share` on return. Format is ByteFormat with Value char, or
// WireFormat with Value float.
template <typename Format, typename Value>
absl::Status DirectAllGather(Exchange& exchange, const Format& format,
                             absl::Span<const Value> share,
                             absl::Span<Value> output,
                             absl::Span<const uint64_t> offsets);

// Receives into `output` the shares that the other ranks send in step `step`.
template <typename Format, typename Value>
absl::Status ReceiveShares(Exchange& exchange, const Format& format,
                           uint32_t step, absl::Span<Value> output,
                           absl::Span<const uint64_t> offsets);

inline ElementRange ShareOf(absl::Span<const uint64_t> offsets, int rank) {
  return {offsets[rank], offsets[rank + 1]};
}

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_ALL_GATHER_H_
