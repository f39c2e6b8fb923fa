// SPDX-License-Identifier: Apache-2.0
// Conversion between grpc::Status and absl::Status. Both use the same sixteen
// codes, so code and message stay.
#ifndef RINGFLEET_CLUSTER_PROCESS_STATUS_H_
#define RINGFLEET_CLUSTER_PROCESS_STATUS_H_

#include <grpcpp/support/status.h>

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ringfleet::cluster {

// Bytes that the message of a status may take on the wire. gRPC refuses
// metadata of more than 8 KiB: the caller would get RESOURCE_EXHAUSTED instead
// of the status. The other entries have the rest.
inline constexpr size_t kMaxStatusBytes = 6 << 10;

absl::Status FromGrpc(const grpc::Status& status);

// Leaves out the middle of a message that takes more than kMaxStatusBytes, and
// says how many bytes are missing: "...[94208 bytes left out]...".
grpc::Status ToGrpc(const absl::Status& status);

// Returns the FAILED_PRECONDITION of a worker that serves another coordinator.
// IsSuperseded knows it by its detail, also after ToGrpc and FromGrpc.
absl::Status SupersededError(absl::string_view message);
bool IsSuperseded(const absl::Status& status);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PROCESS_STATUS_H_
