// SPDX-License-Identifier: Apache-2.0
// The opening of an epoch's links. The higher rank of a pair dials, and no rank
// is connected before every stream of every rank is open and warm.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_PEER_OPENING_H_
#define RINGFLEET_CLUSTER_TRANSPORT_PEER_OPENING_H_

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cluster/process/deadline.h"
#include "cluster/transport/completion_poller.h"
#include "cluster/transport/epoch_cause.h"
#include "cluster/transport/peer_failure.h"
#include "cluster/transport/peer_lanes.h"
#include "cluster/transport/peer_monitor.h"
#include "cluster/transport/peer_stream.h"

namespace ringfleet::cluster {

// Every function requires the poller's role, which guards all state.
class PeerOpening {
 public:
  // `events` receives the reports of all streams. The references must outlive
  // this object.
  PeerOpening(std::shared_ptr<CompletionPoller> poller,
              const LinkConfig& config, const EpochCause& cause,
              PeerMonitor& monitor, PeerLanes& lanes, PeerFailure& failure,
              PeerStream::Events* events);

  // Dials the ranks below this one.
  void Dial();
  // Accepts a stream of this epoch or refuses it.
  void Admit(std::shared_ptr<ServerStream> stream,
             const StreamIdentity& caller);
  // Checks that the other end is `peer`, and warms the stream up.
  void OnOpen(const PeerStream& stream, const StreamIdentity& peer);
  // The peer has opened all its links.
  void OnReady(int peer) { peers_[peer].ready = true; }
  // A stream that ends is opened again: the peer is only starting, or starting
  // again.
  bool IsPatientWith(int peer) const {
    return !connected_ && !peers_[peer].ready;
  }
  void OnStartFailed(const PeerStream& stream, const absl::Status& status);
  // Repeats the calls that are due.
  void Redial();

  // Waits until every rank has opened all its links. An error aborts the
  // epoch.
  absl::Status AwaitConnected(Deadline deadline);

 private:
  struct Peer {
    bool ready = false;
    std::array<std::optional<Deadline>, PeerLanes::kEnds> redial;
  };

  void DialOne(int peer, int end, bool share);
  void WarmUp(int peer, Lane lane);
  void LocatePeer(const PeerStream& stream);
  bool AllReady() const;
  std::string MissingPeers() const;
  void SendReady(int peer);

  const std::shared_ptr<CompletionPoller> poller_;
  const LinkConfig& config_;
  const EpochCause& cause_;
  PeerMonitor& monitor_;
  PeerLanes& lanes_;
  PeerFailure& failure_;
  PeerStream::Events* const events_;
  std::vector<Peer> peers_;  // By rank; the own entry stays empty.
  bool ready_ = false;       // This rank has opened all its links.
  bool connected_ = false;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_PEER_OPENING_H_
