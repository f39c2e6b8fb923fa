// SPDX-License-Identifier: Apache-2.0
// The collective transport over gRPC: what a worker process needs to open the
// links of an epoch and to accept those of its peers. No gRPC channel, stream
// or queue shows here; they are in peer_lanes.h and peer_stream.h.
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

// One per worker process. Must outlive the server it is registered on. The end
// of a process, in this order: StopLinks(), grpc::Server::Shutdown(),
// Shutdown(), the server's destructor, this one's.
class CollectiveEndpoint {
 public:
  struct Options {
    Spin spin = Spin::kAuto;
    // Of the messages of one lane of a peer that nobody has received yet, each
    // counted with what it takes to keep it. Beyond this the lane is no longer
    // read, and gRPC's flow control holds the peer.
    size_t max_queued_bytes = size_t{64} << 20;
    // Zeros that each end of a new lane sends before the first frame. gRPC's
    // flow-control windows start at 64 KiB and grow only with what has flowed:
    // over loopback the first 128 KiB take 200 us without these, 65 us with
    // 1 MiB, and no less with 4 MiB; 7 MiB show no difference.
    size_t warm_up_bytes = size_t{1} << 20;
    // For the operations of this rank, of which peers are told; must outlive
    // the endpoint. Null: they learn only that it is alive.
    FlightRecorder* recorder = nullptr;
  };

  // What all ranks of an epoch agree in.
  struct World {
    std::vector<std::string> addresses;  // By rank.
    // The rings that frames will go round: ranks, each followed by the next
    // one in the ring. Neighbours get the lanes kRight and kLeft.
    std::vector<std::vector<int>> rings;
    TransportKind transport = TransportKind::kAuto;
    uint64_t config_hash = 0;  // Covers what else there is, and is compared.
  };

  explicit CollectiveEndpoint(Options options);
  // Requires Shutdown() if Register() was called.
  ~CollectiveEndpoint();

  // Adds the service, its queue and the server's channel arguments. Call once,
  // before the server starts.
  void Register(grpc::ServerBuilder& builder);

  // After the server has started: takes calls, and polls in the background
  // while no collective does.
  void Start();

  // Options::recorder; communicators over this endpoint's transports use it.
  FlightRecorder* recorder() const;

  // How many worker processes share this machine (1 unless set): with more
  // than there are cores, Spin::kAuto yields. Not during a Connect.
  // `spin` replaces that of the options until the next call.
  void SetRanksOnHost(int ranks, std::optional<Spin> spin = std::nullopt);

  // Enters an epoch: ends the links of the epoch before, opens those to all
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

  // Ends the current epoch with `cause`: wakes a Connect, a Receive or an
  // AwaitReleased that waits. Idempotent; from any thread; never waits itself.
  void Interrupt(const absl::Status& cause);

  // Ends the epoch, closes all streams and refuses new ones, so that the
  // server can be shut down at once. Idempotent; from any thread.
  void StopLinks();

  // StopLinks(), then drains the queue and joins the background thread.
  // Requires that grpc::Server::Shutdown was called, or the server never
  // started, and that the server still exists. Idempotent.
  void Shutdown();

  // Lanes whose frames this rank writes to shared memory, in the current epoch.
  // From any thread that has no transport call under way.
  int shared_lanes() const;

  // Frames of another epoch that arrived over the links of this one and were
  // dropped, over the life of the endpoint. From any thread that has no
  // transport call under way.
  uint64_t dropped_frames() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_LINK_TRANSPORT_H_
