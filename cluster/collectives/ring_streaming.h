// SPDX-License-Identifier: Apache-2.0
// Communicator::StreamingAllGather and StreamingReduceScatter on a ring. Parts
// travel in the order of a published TPU kernel (vllm-project/tpu-inference,
// kernels/collectives/all_gather_matmul.py). The TPU kernel passes on whole
// parts. Here a part is cut into frames, and a rank passes each frame on when
// it arrives, so a hop costs the time of a frame.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_RING_STREAMING_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_RING_STREAMING_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/communicator.h"
#include "cluster/collectives/exchange.h"

namespace ringfleet::cluster {

// Implements Communicator::StreamingAllGather. Requires two ranks or more.
absl::Status RingStreamingAllGather(Exchange& exchange,
                                    const SplitRowsLayout& layout,
                                    absl::Span<const char> own,
                                    StreamingReceiver& receiver);

// Implements Communicator::StreamingReduceScatter. Sums travel as float32.
// Requires two ranks or more.
absl::Status RingStreamingReduceScatter(Exchange& exchange,
                                        const SplitRowsLayout& layout,
                                        StreamingSource& source);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_RING_STREAMING_H_
