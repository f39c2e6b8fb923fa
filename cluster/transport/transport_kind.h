// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_TRANSPORT_TRANSPORT_KIND_H_
#define RINGFLEET_CLUSTER_TRANSPORT_TRANSPORT_KIND_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "protos/types.pb.h"

namespace ringfleet::cluster {

// The carrier of frames between two ranks of one host.
enum class TransportKind : uint8_t {
  kAuto,  // Shared memory if both processes can open it, else streams.
  kGrpc,  // Streams, as between hosts.
};

inline constexpr absl::string_view kTransportChoices = "grpc or auto";

// Parses a name of kTransportChoices. INVALID_ARGUMENT: another name; the
// message has the choices.
absl::StatusOr<v1::TransportKind> ParseTransport(absl::string_view name);

TransportKind TransportFromProto(v1::TransportKind kind);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_TRANSPORT_KIND_H_
