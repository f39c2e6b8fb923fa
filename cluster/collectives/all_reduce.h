// SPDX-License-Identifier: Apache-2.0
// All-reduce: every rank ends with the sum over ranks, with the same bits on
// all ranks. `input` and `output` may be the same memory. Neither is read any
// more on return. The ring's all-reduce is in ring.h. Errors: those of
// Exchange.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_ALL_REDUCE_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_ALL_REDUCE_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/exchange.h"
#include "cluster/wire/wire_format.h"

namespace ringfleet::cluster {

// Sends the whole vector, rounded to the format, to every other rank. Each rank
// adds all vectors, its own as it was sent, in float32 and in rank order
// 0, 1, ..., and rounds the sum to the format.
absl::Status OneShotAllReduce(Exchange& exchange, const WireFormat& format,
                              absl::Span<const float> input,
                              absl::Span<float> output);

// Sends every share r to rank r. Rank r adds up share r of all ranks and sends
// the sum to all ranks. The bits are those of one shot, for fewer bytes and one
// more latency. `offsets` bound the shares, and lie on the format's borders.
absl::Status TwoShotAllReduce(Exchange& exchange, const WireFormat& format,
                              absl::Span<const float> input,
                              absl::Span<float> output,
                              absl::Span<const uint64_t> offsets);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_ALL_REDUCE_H_
