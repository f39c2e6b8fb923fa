// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_WIRE_WIRE_PROTO_H_
#define RINGFLEET_CLUSTER_WIRE_WIRE_PROTO_H_

#include "absl/status/statusor.h"
#include "cluster/collectives/communicator.h"
#include "protos/types.pb.h"

namespace ringfleet::cluster {

v1::WireDtype WireToProto(Wire wire);

// INVALID_ARGUMENT: unspecified or unknown.
absl::StatusOr<Wire> WireFromProto(v1::WireDtype wire);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_WIRE_WIRE_PROTO_H_
