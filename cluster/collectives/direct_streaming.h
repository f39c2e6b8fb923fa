// SPDX-License-Identifier: Apache-2.0
// Communicator::StreamingReduceScatter without a ring: a rank's summand of a
// part goes to the owner of the part, which adds up.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_DIRECT_STREAMING_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_DIRECT_STREAMING_H_

#include "absl/status/status.h"
#include "cluster/collectives/communicator.h"
#include "cluster/collectives/exchange.h"
#include "cluster/wire/wire_format.h"

namespace ringfleet::cluster {

// Requires two ranks or more. Each summand is encoded once, and sums are made
// in rank order, as by DirectReduceScatter. In every step a rank sends two
// parts and receives two, as on the ring, but no rank waits for a sum to pass
// on. Frames that come before the own summands are computed are kept encoded;
// between two ranks they stay in the transport.
absl::Status DirectStreamingReduceScatter(Exchange& exchange,
                                          const SplitRowsLayout& layout,
                                          const WireFormat& format,
                                          StreamingSource& source);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_DIRECT_STREAMING_H_
