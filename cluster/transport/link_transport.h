// SPDX-License-Identifier: Apache-2.0
// The collective transport over gRPC for a worker process. It opens the links
// of an epoch and accepts the links of peers. peer_lanes.h and peer_stream.h
// have gRPC's channels, streams and queues.
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
#include "cluster/recording/round_trips.h"
#include "cluster/transport/spinning.h"
#include "cluster/transport/transport.h"
#include "cluster/transport/transport_kind.h"

namespace grpc {
class ServerBuilder;
}

namespace ringfleet::cluster {

// One per worker process. Must outlive the server on which it is registered. A
// process must end in this order: StopLinks(), grpc::Server::Shutdown(),
// Shutdown(), the server's destructor, the endpoint's destructor.
class CollectiveEndpoint {
 public:
  struct Options {
    Spin spin = Spin::kAuto;
    // Largest number of bytes of one lane that have arrived and that Receive
    // has not returned yet. At the limit the lane is not read, so gRPC's flow
    // control stops the peer.
    size_t max_queued_bytes = size_t{64} << 20;
    // Number of zero bytes that each end of a new lane sends before the first
    // frame. They make gRPC's flow-control windows grow, which start at 64 KiB.
    // Over loopback the first 128 KiB take 200 us without zeros and 65 us with
    // 1 MiB of zeros. 4 MiB of zeros are not faster.
    size_t warm_up_bytes = size_t{1} << 20;
    // Recorder of this rank's operations. Heartbeats tell peers the last
    // operation. Null: heartbeats tell only that the rank is alive. Must
    // outlive the endpoint.
    FlightRecorder* recorder = nullptr;
    // Gets the round trips of heartbeats to the peers of the current epoch.
    // Null: they are not kept. Must outlive the endpoint.
    RoundTrips* round_trips = nullptr;
  };

  // Settings that are equal on all ranks of an epoch.
  struct World {
    std::vector<std::string> addresses;  // Indexed by rank.
    // The rings, each with its ranks in the order of the ring. Neighbours in a
    // ring get the lanes kRight and kLeft.
    std::vector<std::vector<int>> rings;
    TransportKind transport = TransportKind::kAuto;
    uint64_t config_hash = 0;  // Hash of all other settings.
  };

  explicit CollectiveEndpoint(Options options);
  // Shutdown() must have returned if Register() was called.
  ~CollectiveEndpoint();

  // Adds the service, its queue and channel arguments to a server. Call once,
  // before the server starts.
  void Register(grpc::ServerBuilder& builder);

  // Begins to accept calls, and to poll in the background while no collective
  // polls. Call it after the server has started.
  void Start();

  // Returns Options::recorder, for communicators over this endpoint's
  // transports.
  FlightRecorder* recorder() const;

  // Sets the number of worker processes on this machine. The initial number is
  // 1. If there are more processes than cores, Spin::kAuto yields. `spin`
  // replaces Options::spin until the next SetRanksOnHost. Must not be called
  // during Connect.
  void SetRanksOnHost(int ranks, std::optional<Spin> spin = std::nullopt);

  // Enters an epoch. Ends the links of the previous epoch, opens links to all
  // other ranks, and returns when every rank has opened all its links. All
  // ranks must call Connect. Ranks that call it earlier wait for the others.
  //
  // Errors:
  //   FAILED_PRECONDITION: this rank or a peer has already entered this or a
  //     later epoch, or a peer has another configuration (names both) or other
  //     rings.
  //   DEADLINE_EXCEEDED: names the ranks whose links are not open.
  //   UNAVAILABLE: a peer went away.   INVALID_ARGUMENT: no such rank.
  //   CANCELLED, UNAVAILABLE: StopLinks was called.
  absl::StatusOr<std::unique_ptr<Transport>> Connect(uint64_t epoch, int rank,
                                                     const World& world,
                                                     Deadline deadline);

  // Ends the current epoch with `cause` and wakes a waiting Connect, Receive or
  // AwaitReleased. Never waits. Idempotent. Thread-safe.
  void Interrupt(const absl::Status& cause);

  // Ends the epoch, closes all streams and refuses new streams, so that the
  // server's Shutdown need not wait. Idempotent. Thread-safe.
  void StopLinks();

  // Calls StopLinks(), drains the queue and joins the background thread. Before
  // it, grpc::Server::Shutdown must have been called, unless the server never
  // started. The server must still exist. Idempotent.
  void Shutdown();

  // Returns the number of lanes of the current epoch on which this rank writes
  // frames to shared memory. Any thread may call it, except from within a
  // transport call.
  int shared_lanes() const;

  // Returns the number of frames dropped since construction: frames of one
  // epoch that arrived over the links of another epoch. Any thread may call it,
  // except from within a transport call.
  uint64_t dropped_frames() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_LINK_TRANSPORT_H_
