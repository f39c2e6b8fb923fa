// SPDX-License-Identifier: Apache-2.0
// Ranks that talk over real gRPC on loopback, all in this process. The process
// is set up like that of a worker. Each rank has a server on a port that the
// kernel chooses, and a CollectiveEndpoint. One ring joins all ranks.
#ifndef RINGFLEET_TESTS_TESTING_GRPC_WORLD_H_
#define RINGFLEET_TESTS_TESTING_GRPC_WORLD_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "cluster/recording/flight_recorder.h"
#include "cluster/rpc/server.h"
#include "cluster/transport/link_transport.h"

namespace ringfleet::testing {

class GrpcWorld {
 public:
  using Options = cluster::CollectiveEndpoint::Options;
  using World = cluster::CollectiveEndpoint::World;

  explicit GrpcWorld(
      int size,
      Options options = {.spin = cluster::Spin::kNever, .warm_up_bytes = 0},
      cluster::TransportKind transport = cluster::TransportKind::kGrpc,
      bool record = true) {
    cluster::ConfigureGrpcProcess();
    world_.transport = transport;
    for (int rank = 0; rank < size; ++rank) {
      recorders_.push_back(std::make_unique<cluster::FlightRecorder>());
      options.recorder = record ? recorders_.back().get() : nullptr;
      endpoints_.push_back(
          std::make_unique<cluster::CollectiveEndpoint>(options));
      grpc::ServerBuilder builder;
      int port = 0;
      builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                               &port);
      endpoints_.back()->Register(builder);
      servers_.push_back(builder.BuildAndStart());
      endpoints_.back()->Start();
      world_.addresses.push_back("127.0.0.1:" + std::to_string(port));
    }
    world_.rings.emplace_back(size);
    std::iota(world_.rings[0].begin(), world_.rings[0].end(), 0);
    world_.config_hash = 7;
  }
  ~GrpcWorld() {
    for (int rank = 0; rank < size(); ++rank) Kill(rank);
  }

  int size() const { return static_cast<int>(endpoints_.size()); }
  cluster::CollectiveEndpoint& endpoint(int rank) { return *endpoints_[rank]; }
  // Returns the recorder for the communicators of a rank.
  cluster::FlightRecorder& recorder(int rank) { return *recorders_[rank]; }
  // The world that all ranks connect with. Tests may change the world before
  // ranks connect.
  World& world() { return world_; }
  const std::vector<std::string>& addresses() const { return world_.addresses; }

  absl::StatusOr<std::unique_ptr<cluster::Transport>> Connect(
      int rank, uint64_t epoch = 1,
      absl::Duration timeout = absl::Seconds(100)) {
    World world = world_;
    if (rank == streams_only_) {
      world.transport = cluster::TransportKind::kGrpc;
    }
    return endpoints_[rank]->Connect(epoch, rank, world,
                                     cluster::Deadline::After(timeout));
  }

  // Makes `rank` connect as if it had a host of its own.
  void UseStreamsOnly(int rank) { streams_only_ = rank; }

  // Stops a rank's server and all its streams.
  void Kill(int rank) {
    if (servers_[rank] == nullptr) return;
    servers_[rank]->Shutdown(std::chrono::system_clock::now());
    endpoints_[rank]->Shutdown();
    servers_[rank].reset();
  }

  // Runs body(rank) on one thread for each rank.
  void Run(const std::function<void(int rank)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      threads.emplace_back([&body, rank] { body(rank); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // Connects all ranks in `epoch`, then runs body(transport) on each rank.
  // Destroys the transports after all bodies have returned.
  void RunConnected(const std::function<void(cluster::Transport&)>& body,
                    uint64_t epoch = 1);

 private:
  std::vector<std::unique_ptr<cluster::FlightRecorder>> recorders_;
  std::vector<std::unique_ptr<cluster::CollectiveEndpoint>> endpoints_;
  std::vector<std::unique_ptr<grpc::Server>> servers_;
  World world_;
  int streams_only_ = -1;
};

// Returns the payload of a frame in one piece.
std::string PayloadOf(const cluster::FrameBody& frame);

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_GRPC_WORLD_H_
