// SPDX-License-Identifier: Apache-2.0
// All-reduce: every rank ends with the sum over ranks, the same bits on all.
// `input` and `output` may be the same memory; neither is read any more on
// return. The ring's is in ring.h. Errors: those of Exchange.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_ALL_REDUCE_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_ALL_REDUCE_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/exchange.h"
#include "cluster/wire/wire_format.h"

namespace ringfleet::cluster {

// Every rank sends its whole vector, rounded to the format, to every other,
// and each adds all of them, its own as it was sent, in rank order 0, 1, ...
// in float32, then rounds the sum to the format.
absl::Status OneShotAllReduce(Exchange& exchange, const WireFormat& format,
                              absl::Span<const float> input,
                              absl::Span<float> output);

// Share r of everybody goes to rank r, which sums and sends the sum to all:
// the same bits as one shot for fewer bytes and one more latency. `offsets`
// are the shares', on the format's borders.
absl::Status TwoShotAllReduce(Exchange& exchange, const WireFormat& format,
                              absl::Span<const float> input,
                              absl::Span<float> output,
                              absl::Span<const uint64_t> offsets);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_ALL_REDUCE_H_
