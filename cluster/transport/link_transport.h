// SPDX-License-Identifier: Apache-2.0
// The collective transport over gRPC, for a worker process: it opens the links
// of an epoch and accepts those of its peers. gRPC's channels, streams and
// queues are in peer_lanes.h and peer_stream.h.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_LINK_TRANSPORT_H_
#define RINGFLEET_CLUSTER_TRANSPORT_LINK_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cluster/process/deadline.h"
#include "cluster/recording/flight_recorder.h"
#include "cluster/transport/spinning.h"
#include "cluster/transport/transport.h"
#include "cluster/transport/transport_kind.h"

namespace grpc {
class ServerBuilder;
}

namespace ringfleet::cluster {

// One per worker process. Must outlive the server that it is registered on. A
// process ends in this order: StopLinks(), grpc::Server::Shutdown(),
// Shutdown(), the server's destructor, the endpoint's destructor.
class CollectiveEndpoint {
 public:
  struct Options {
    Spin spin = Spin::kAuto;
    // The most bytes of messages of one lane that nobody has received yet, each
    // with its overhead. Beyond it the lane is no longer read, and gRPC's flow
    // control holds the peer.
    size_t max_queued_bytes = size_t{64} << 20;
    // Zeros that each end of a new lane sends before the first frame. gRPC's
    // flow-control windows start at 64 KiB and grow with the bytes that have
    // flowed. Over loopback the first 128 KiB take 200 us without zeros and
    // 65 us with 1 MiB; 4 MiB gain nothing more.
    size_t warm_up_bytes = size_t{1} << 20;
    // Records the operations of this rank, of which peers are told. Must
    // outlive the endpoint. Null: peers learn only that the rank is alive.
    FlightRecorder* recorder = nullptr;
  };

  // The settings that all ranks of an epoch agree in.
  struct World {
    std::vector<std::string> addresses;  // By rank.
    // The rings of ranks, each rank followed by the next one in the ring.
    // Neighbours get the lanes kRight and kLeft.
    std::vector<std::vector<int>> rings;
    TransportKind transport = TransportKind::kAuto;
    uint64_t config_hash = 0;  // Covers all other settings; ranks compare it.
  };

  explicit CollectiveEndpoint(Options options);
  // Requires Shutdown() if Register() was called.
  ~CollectiveEndpoint();

  // Adds the service, its queue and the server's channel arguments. Call once,
  // before the server starts.
  void Register(grpc::ServerBuilder& builder);

  // Takes calls, and polls in the background while no collective does. Call it
  // after the server has started.
  void Start();

  // Returns Options::recorder. Communicators over this endpoint's transports
  // use it.
  FlightRecorder* recorder() const;

  // Sets the number of worker processes on this machine, 1 at first. With more
  // than there are cores, Spin::kAuto yields. `spin` replaces that of the
  // options until the next call. Not during a Connect.
  void SetRanksOnHost(int ranks, std::optional<Spin> spin = std::nullopt);

  // Enters an epoch: ends the links of the earlier epoch, opens links to all
  // other ranks and returns when every rank has opened all of its own. All
  // ranks call it at about the same time; peers may be late.
  //
  // Errors:
  //   FAILED_PRECONDITION: the epoch is not later than all before, here or at a
  //     peer, or a peer has another configuration (names both) or other rings.
  //   DEADLINE_EXCEEDED: names the ranks that are missing.
  //   UNAVAILABLE: a peer went away.   INVALID_ARGUMENT: no such rank.
  //   CANCELLED, UNAVAILABLE: StopLinks was called.
  absl::StatusOr<std::unique_ptr<Transport>> Connect(uint64_t epoch, int rank,
                                                     const World& world,
                                                     Deadline deadline);

  // Ends the current epoch with `cause` and wakes a waiting Connect, Receive or
  // AwaitReleased. Idempotent. Never waits. From any thread.
  void Interrupt(const absl::Status& cause);

  // Ends the epoch, closes all streams and refuses new ones, so that the
  // server can be shut down at once. Idempotent. From any thread.
  void StopLinks();

  // Calls StopLinks(), drains the queue and joins the background thread.
  // Requires that grpc::Server::Shutdown was called or the server never
  // started, and that the server still exists. Idempotent.
  void Shutdown();

  // Counts the lanes of the current epoch whose frames this rank writes to
  // shared memory. From any thread that has no transport call under way.
  int shared_lanes() const;

  // Counts the dropped frames over the life of the endpoint: frames of an epoch
  // that arrived over the links of another. From any thread that has no
  // transport call under way.
  uint64_t dropped_frames() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_LINK_TRANSPORT_H_
