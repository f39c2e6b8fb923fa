// SPDX-License-Identifier: Apache-2.0
// Communicator::ReduceHalves without a ring: what a rank has computed of a half
// goes to the rank that the half belongs to, which adds up.
#ifndef RINGFLEET_CLUSTER_DIRECT_HALVES_H_
#define RINGFLEET_CLUSTER_DIRECT_HALVES_H_

#include "absl/status/status.h"
#include "cluster/communicator.h"
#include "cluster/exchange.h"
#include "cluster/wire_format.h"

namespace ringfleet::cluster {

// Requires two ranks or more. Each summand is encoded once. In every step a
// rank sends two halves and two are sent to it, as on the ring, and sums are
// made in the same order; but nobody waits for a sum to pass on.
absl::Status DirectReduceHalves(Exchange& exchange, const HalvesLayout& layout,
                                const WireFormat& format, HalvesSource& source);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_DIRECT_HALVES_H_
