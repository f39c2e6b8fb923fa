// SPDX-License-Identifier: Apache-2.0
// Reduce-scatter: every rank ends with its own share of the sum.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_REDUCE_SCATTER_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_REDUCE_SCATTER_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/exchange.h"
#include "cluster/collectives/frame_cuts.h"
#include "cluster/wire/wire_format.h"

namespace ringfleet::cluster {

// Sends the partial of each share, rounded to the format, directly to the
// share's owner in `step`. The owner adds in rank order, with its own partial
// rounded as well. `share` may lie at its position in `input`. `reduced` is
// called for every frame of the own share as soon as its sum is in `share`. The
// caller's memory may be read until Exchange::AwaitCallerMemory returns.
absl::Status DirectReduceScatter(
    Exchange& exchange, const WireFormat& format, uint32_t step,
    absl::Span<const float> input, absl::Span<float> share,
    absl::Span<const uint64_t> offsets,
    absl::FunctionRef<absl::Status(const FrameCursor<WireFormat>&)> reduced);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_REDUCE_SCATTER_H_
