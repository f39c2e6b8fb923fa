// SPDX-License-Identifier: Apache-2.0
// The ring's Communicator::StreamingAllGather and StreamingReduceScatter, for
// products that are fused with them. Parts travel in the order of a published
// TPU kernel (vllm-project/tpu-inference,
// kernels/collectives/all_gather_matmul.py), which sends a whole part in a
// step. Here a part is cut into frames that are passed on as they come, so that
// a hop costs the time of a frame.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_RING_STREAMING_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_RING_STREAMING_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/communicator.h"
#include "cluster/collectives/exchange.h"

namespace ringfleet::cluster {

// Requires two ranks or more. `own` has the own rows.
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
