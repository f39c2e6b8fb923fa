// SPDX-License-Identifier: Apache-2.0
// Conversion between grpc::Status and absl::Status. Both use the same sixteen
// codes, so code and message stay.
#ifndef RINGFLEET_CLUSTER_PROCESS_STATUS_H_
#define RINGFLEET_CLUSTER_PROCESS_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace ringfleet::cluster {

absl::Status FromGrpc(const grpc::Status& status);
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PROCESS_STATUS_H_
