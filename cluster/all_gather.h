// SPDX-License-Identifier: Apache-2.0
// All-gather: every rank ends with the segments of all ranks.
#ifndef RINGFLEET_CLUSTER_ALL_GATHER_H_
#define RINGFLEET_CLUSTER_ALL_GATHER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/exchange.h"

namespace ringfleet::cluster {

// Rank r's segment is bytes [offsets[r], offsets[r + 1]) of `data`; the own one
// is in place on entry. `offsets` has size() + 1 ascending entries that end
// within `data`. Both return once nothing of `data` is still being sent. The
// errors are those of Exchange.

// Every rank sends its segment to every other: one step.
absl::Status OneShotAllGather(Exchange& exchange, absl::Span<char> data,
                              absl::Span<const uint64_t> offsets);

// Segments walk around the ring: size() - 1 steps, numbered from `first_step`,
// each forwarding what the step before received. Every rank talks to its two
// neighbours only, and every link carries the same bytes.
absl::Status RingAllGather(Exchange& exchange, absl::Span<char> data,
                           absl::Span<const uint64_t> offsets,
                           uint32_t first_step = 0);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_ALL_GATHER_H_
