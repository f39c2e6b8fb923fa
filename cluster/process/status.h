// SPDX-License-Identifier: Apache-2.0
// The only place where grpc::Status and absl::Status meet. Both use the same
// sixteen codes, so the conversion keeps code and message.
#ifndef RINGFLEET_CLUSTER_PROCESS_STATUS_H_
#define RINGFLEET_CLUSTER_PROCESS_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace ringfleet::cluster {

absl::Status FromGrpc(const grpc::Status& status);
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PROCESS_STATUS_H_
