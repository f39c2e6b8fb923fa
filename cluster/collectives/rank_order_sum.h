// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_RANK_ORDER_SUM_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_RANK_ORDER_SUM_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/exchange.h"
#include "cluster/collectives/frame_cuts.h"
#include "cluster/wire/wire_format.h"

namespace ringfleet::cluster {

// Computes sum[i] = partial 0 + partial 1 + ..., always in this order and in
// float32. Partial r is the encoded input of rank r for `elements`. So the
// result does not depend on the order of arrival, on the cut into frames, or on
// the rank that sums. Receives the frame at `place` from every other rank, in
// rank order. Adds each partial directly from the transport's memory. `own` is
// this rank's partial. If `sum_has_own`, `sum` already holds this rank's
// partial, decoded.
//
// Errors: those of Exchange::Receive.
absl::Status SumInRankOrder(Exchange& exchange, const WireFormat& format,
                            ElementRange elements, Exchange::Place place,
                            absl::Span<const char> own, bool sum_has_own,
                            float* sum);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_RANK_ORDER_SUM_H_
