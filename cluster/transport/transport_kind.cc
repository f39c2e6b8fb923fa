// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/transport_kind.h"

#include "absl/strings/str_cat.h"

namespace ringfleet::cluster {

absl::StatusOr<v1::TransportKind> ParseTransport(absl::string_view name) {
  if (name == "auto") return v1::TRANSPORT_KIND_AUTO;
  if (name == "grpc") return v1::TRANSPORT_KIND_GRPC;
  return absl::InvalidArgumentError(
      absl::StrCat("transport ", name, ", want ", kTransportChoices));
}

TransportKind TransportFromProto(v1::TransportKind kind) {
  return kind == v1::TRANSPORT_KIND_GRPC ? TransportKind::kGrpc
                                         : TransportKind::kAuto;
}

}  // namespace ringfleet::cluster
