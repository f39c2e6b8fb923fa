// SPDX-License-Identifier: Apache-2.0
// The ring's part of a product that is fused with an all-gather or a
// reduce-scatter of rows: Communicator::StreamingAllGather and, where the table
// of algorithms says so, StreamingReduceScatter. The order in which halves
// travel is that of a published TPU kernel (vllm-project/tpu-inference,
// kernels/collectives/all_gather_matmul.py), which sends a whole half in a
// step; here a half is cut into segments that are passed on as they come, so
// that a hop costs the time of a segment.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_RING_STREAMING_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_RING_STREAMING_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/communicator.h"
#include "cluster/collectives/exchange.h"

namespace ringfleet::cluster {

// Requires two ranks or more, and `own` of the own rows.
absl::Status RingStreamingAllGather(Exchange& exchange,
                                    const SplitRowsLayout& layout,
                                    absl::Span<const char> own,
                                    StreamingReceiver& receiver);

// Requires two ranks or more. Sums travel as float32.
absl::Status RingStreamingReduceScatter(Exchange& exchange,
                                        const SplitRowsLayout& layout,
                                        StreamingSource& source);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_RING_STREAMING_H_
