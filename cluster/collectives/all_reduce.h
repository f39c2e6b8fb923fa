// SPDX-License-Identifier: Apache-2.0
// All-reduce: every rank ends with the sum over ranks, with equal bits. `input`
// and `output` may be the same memory. On success no queued frame refers to
// either any more, so the caller may reuse the memory. ring.h has the ring's
// all-reduce. Errors: those of Exchange.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_ALL_REDUCE_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_ALL_REDUCE_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/exchange.h"
#include "cluster/wire/wire_format.h"

namespace ringfleet::cluster {

// Sends the whole vector, rounded to the format, to every other rank. Each rank
// adds the rounded vectors of all ranks, its own too, in float32 and in rank
// order 0, 1, .... It rounds the sum to the format.
absl::Status OneShotAllReduce(Exchange& exchange, const WireFormat& format,
                              absl::Span<const float> input,
                              absl::Span<float> output);

// Sends every share r to rank r. Rank r adds share r of all ranks and sends the
// sum to all ranks. The result has the bits of OneShotAllReduce. It sends fewer
// bytes than OneShotAllReduce and takes one more latency. Share r is
// [offsets[r], offsets[r + 1]). Offsets must be borders of the format (see
// WireFormat::FloorToBorder).
absl::Status TwoShotAllReduce(Exchange& exchange, const WireFormat& format,
                              absl::Span<const float> input,
                              absl::Span<float> output,
                              absl::Span<const uint64_t> offsets);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_ALL_REDUCE_H_
