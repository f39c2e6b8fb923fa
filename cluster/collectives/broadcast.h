// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_BROADCAST_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_BROADCAST_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/exchange.h"
#include "cluster/wire/wire_format.h"

namespace ringfleet::cluster {

// Sends the values of `root` directly to every other rank, and rounds its own
// copy as it was sent. Nothing is read any more on return. The ring's broadcast
// is in ring.h.
absl::Status OneShotBroadcast(Exchange& exchange, const WireFormat& format,
                              int root, absl::Span<float> values);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_BROADCAST_H_
