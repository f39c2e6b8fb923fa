// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_RANK_ORDER_SUM_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_RANK_ORDER_SUM_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/exchange.h"
#include "cluster/collectives/frame_cuts.h"
#include "cluster/wire/wire_format.h"

namespace ringfleet::cluster {

// Computes sum[i] = partial of rank 0 + partial of rank 1 + ..., always in this
// order and in float32. So the result does not depend on the order of arrival,
// on the cut into frames, or on the rank that sums. Receives the frame at
// `place` of every other rank. Each partial is added from the memory that
// received it, once the partials of lower ranks have come. `own` is this rank's
// encoded partial. With `sum_has_own`, `sum` holds the own partial already,
// decoded.
//
// Errors: those of Exchange::Receive.
absl::Status SumInRankOrder(Exchange& exchange, const WireFormat& format,
                            ElementRange elements, Exchange::Place place,
                            absl::Span<const char> own, bool sum_has_own,
                            float* sum);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_RANK_ORDER_SUM_H_
