// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_BROADCAST_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_BROADCAST_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/exchange.h"
#include "cluster/wire/wire_format.h"

namespace ringfleet::cluster {

// Sends the `values` of rank `root` directly to every other rank. The root
// rounds its own copy to the format, too. On success no queued frame refers
// to `values` any more. ring.h has the ring's broadcast.
absl::Status OneShotBroadcast(Exchange& exchange, const WireFormat& format,
                              int root, absl::Span<float> values);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_BROADCAST_H_
