// SPDX-License-Identifier: Apache-2.0
// The id that tells a coordinator's process apart from its predecessors. Its
// calls to workers carry the id as metadata. See Worker in worker.proto.
#ifndef RINGFLEET_CLUSTER_RPC_COORDINATOR_ID_H_
#define RINGFLEET_CLUSTER_RPC_COORDINATOR_ID_H_

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include <string>

namespace ringfleet::cluster {

// Returns 128 random bits as 32 hexadecimal digits.
std::string NewCoordinatorId();

// Makes a call carry `id`, unless it is empty. Call before the call begins.
void SetCoordinatorId(const std::string& id, grpc::ClientContext* context);

// Returns the id that a call carries; empty: none.
std::string CoordinatorIdOf(const grpc::ServerContext& context);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RPC_COORDINATOR_ID_H_
