// SPDX-License-Identifier: Apache-2.0
// Reduce-scatter: every rank ends with its own segment of the sum.
#ifndef RINGFLEET_CLUSTER_REDUCE_SCATTER_H_
#define RINGFLEET_CLUSTER_REDUCE_SCATTER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/exchange.h"

namespace ringfleet::cluster {

// Rank r's segment, elements [offsets[r], offsets[r + 1]) of `data`, becomes
// the sum over ranks; the rest of `data` is left unspecified. Partial sums
// walk around the ring in size() - 1 steps from 0: a segment starts at the
// rank after its owner and every rank it passes adds its own values, in
// float32, so segment r is summed in the order r + 1, r + 2, ..., r.
//
// Does not flush: other segments than rank r's may still be read after the
// return, until Exchange::Flush. They may be overwritten with what other ranks
// computed from them, because that proves them received.
absl::Status RingReduceScatter(Exchange& exchange, absl::Span<float> data,
                               absl::Span<const uint64_t> offsets);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_REDUCE_SCATTER_H_
