// SPDX-License-Identifier: Apache-2.0
// Reduce-scatter: every rank ends with its own share of the sum over ranks.
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

// Sends this rank's input for each share, rounded to the format, directly to
// the share's owner as frames of `step`, the number of this exchange within the
// operation. `offsets` are those of Communicator::ReduceScatter. The owner
// rounds its own input, too, and adds in rank order. `share` may lie at its
// position in `input`. `reduced` is called for each frame of this rank's share
// once the frame's sum is in `share`. Frames may point at `input` until
// Exchange::AwaitCallerMemory returns.
absl::Status DirectReduceScatter(
    Exchange& exchange, const WireFormat& format, uint32_t step,
    absl::Span<const float> input, absl::Span<float> share,
    absl::Span<const uint64_t> offsets,
    absl::FunctionRef<absl::Status(const FrameCursor<WireFormat>&)> reduced);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_REDUCE_SCATTER_H_
