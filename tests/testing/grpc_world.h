// SPDX-License-Identifier: Apache-2.0
// Ranks that talk over real gRPC on loopback, all in this process: one server
// and one CollectiveEndpoint each, ports chosen by the kernel.
#ifndef RINGFLEET_TESTS_TESTING_GRPC_WORLD_H_
#define RINGFLEET_TESTS_TESTING_GRPC_WORLD_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cluster/link_transport.h"

namespace ringfleet::testing {

class GrpcWorld {
 public:
  explicit GrpcWorld(int size, cluster::CollectiveEndpoint::Options options = {
                                   .ranks_on_host = 64}) {
    for (int rank = 0; rank < size; ++rank) {
      endpoints_.push_back(
          std::make_unique<cluster::CollectiveEndpoint>(options));
      grpc::ServerBuilder builder;
      int port = 0;
      builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                               &port);
      endpoints_.back()->Register(builder);
      servers_.push_back(builder.BuildAndStart());
      endpoints_.back()->Start();
      addresses_.push_back("127.0.0.1:" + std::to_string(port));
    }
  }
  ~GrpcWorld() {
    for (int rank = 0; rank < size(); ++rank) Kill(rank);
  }

  int size() const { return static_cast<int>(endpoints_.size()); }
  cluster::CollectiveEndpoint& endpoint(int rank) { return *endpoints_[rank]; }
  const std::vector<std::string>& addresses() const { return addresses_; }

  absl::StatusOr<std::unique_ptr<cluster::Transport>> Connect(
      int rank, uint64_t epoch = 1, uint64_t config = 7,
      absl::Duration timeout = absl::Seconds(30)) {
    return endpoints_[rank]->Connect(epoch, rank, addresses_, config,
                                     cluster::Deadline::After(timeout));
  }

  // Takes a rank's server and all its streams down.
  void Kill(int rank) {
    if (servers_[rank] == nullptr) return;
    servers_[rank]->Shutdown(std::chrono::system_clock::now());
    endpoints_[rank]->Shutdown();
    servers_[rank].reset();
  }

  // Runs body(rank) on one thread per rank.
  void Run(const std::function<void(int rank)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      threads.emplace_back([&body, rank] { body(rank); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // Connects all ranks in `epoch`, then runs body(transport) on each. All
  // bodies have returned when the first transport is destroyed.
  void RunConnected(const std::function<void(cluster::Transport&)>& body,
                    uint64_t epoch = 1);

 private:
  std::vector<std::unique_ptr<cluster::CollectiveEndpoint>> endpoints_;
  std::vector<std::unique_ptr<grpc::Server>> servers_;
  std::vector<std::string> addresses_;
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_GRPC_WORLD_H_
