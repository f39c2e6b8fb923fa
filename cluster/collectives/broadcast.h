// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_BROADCAST_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_BROADCAST_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/exchange.h"
#include "cluster/wire/wire_format.h"

namespace ringfleet::cluster {

// `root` sends its values directly to every other rank and rounds its own as
// it sends them. Nothing is read any more on return. The ring's is in ring.h.
absl::Status OneShotBroadcast(Exchange& exchange, const WireFormat& format,
                              int root, absl::Span<float> values);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_BROADCAST_H_
