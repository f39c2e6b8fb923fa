// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/grpc_world.h"

#include "kernels/check.h"

namespace ringfleet::testing {

void GrpcWorld::RunConnected(
    const std::function<void(cluster::Transport&)>& body, uint64_t epoch) {
  std::vector<absl::StatusOr<std::unique_ptr<cluster::Transport>>> connected(
      size());
  Run([&](int rank) { connected[rank] = Connect(rank, epoch); });
  bool all = true;
  for (int rank = 0; rank < size(); ++rank) {
    if (connected[rank].ok()) continue;
    all = false;
    fprintf(stderr, "rank %d: %s\n", rank,
            connected[rank].status().ToString().c_str());
  }
  RF_CHECK(all);
  Run([&](int rank) { body(**connected[rank]); });
}

std::string PayloadOf(const cluster::FrameBody& frame) {
  std::string payload;
  for (const auto piece : frame.payload) {
    payload.append(piece.data(), piece.size());
  }
  RF_CHECK(payload.size() == frame.payload_bytes);
  return payload;
}

}  // namespace ringfleet::testing
