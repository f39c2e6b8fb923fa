// SPDX-License-Identifier: Apache-2.0
// Communicator::StreamingReduceScatter without a ring: what a rank has computed
// of a half goes to the rank that the half belongs to, which adds up.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_DIRECT_STREAMING_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_DIRECT_STREAMING_H_

#include "absl/status/status.h"
#include "cluster/collectives/communicator.h"
#include "cluster/collectives/exchange.h"
#include "cluster/wire/wire_format.h"

namespace ringfleet::cluster {

// Requires two ranks or more. Each summand is encoded once, and sums are made
// in the order of ranks, as by DirectReduceScatter. In every step a rank sends
// two halves and two are sent to it, as on the ring, but nobody waits for a sum
// to pass on. What has come before the own summands are there is kept as it
// came, of two ranks in the transport.
absl::Status DirectStreamingReduceScatter(Exchange& exchange,
                                          const SplitRowsLayout& layout,
                                          const WireFormat& format,
                                          StreamingSource& source);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_DIRECT_STREAMING_H_
