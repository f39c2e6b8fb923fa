// SPDX-License-Identifier: Apache-2.0
// Communicator::StreamingReduceScatter by one shot: each rank sends its summand
// of a part to the part's owner. The owner adds the summands.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_DIRECT_STREAMING_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_DIRECT_STREAMING_H_

#include "absl/status/status.h"
#include "cluster/collectives/communicator.h"
#include "cluster/collectives/exchange.h"
#include "cluster/wire/wire_format.h"

namespace ringfleet::cluster {

// Encodes each summand once and adds in rank order, as DirectReduceScatter
// does. In every step a rank sends two parts and receives two parts. No rank
// waits for a sum to pass on. With three ranks or more, a rank keeps the
// encoded frames that arrive until its own summands are computed. With two
// ranks, a frame stays in the transport until the rows that it is added to are
// computed. Requires two ranks or more.
absl::Status DirectStreamingReduceScatter(Exchange& exchange,
                                          const SplitRowsLayout& layout,
                                          const WireFormat& format,
                                          StreamingSource& source);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_DIRECT_STREAMING_H_
