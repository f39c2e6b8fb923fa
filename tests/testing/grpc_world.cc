// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/grpc_world.h"

#include "kernels/check.h"

namespace ringfleet::testing {

void GrpcWorld::RunConnected(
    const std::function<void(cluster::Transport&)>& body, uint64_t epoch) {
  std::vector<std::unique_ptr<cluster::Transport>> transports(size());
  Run([&](int rank) {
    auto transport = Connect(rank, epoch);
    if (!transport.ok()) {
      fprintf(stderr, "rank %d: %s\n", rank,
              transport.status().ToString().c_str());
    }
    RF_CHECK(transport.ok());
    transports[rank] = *std::move(transport);
  });
  Run([&](int rank) { body(*transports[rank]); });
}

}  // namespace ringfleet::testing
