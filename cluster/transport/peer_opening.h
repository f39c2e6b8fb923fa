// SPDX-License-Identifier: Apache-2.0
// Opens the links of an epoch. The higher one of two ranks dials.
// AwaitConnected returns on no rank before all streams of all ranks are open
// and warm.
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
  // `events` takes the events of all streams. The references must outlive this
  // object.
  PeerOpening(std::shared_ptr<CompletionPoller> poller,
              const LinkConfig& config, const EpochCause& cause,
              PeerMonitor& monitor, PeerLanes& lanes, PeerFailure& failure,
              PeerStream::Events* events);

  // Dials all ranks below this rank.
  void Dial();
  // Accepts or refuses a stream of this epoch.
  void Admit(std::shared_ptr<ServerStream> stream,
             const StreamIdentity& caller);
  // Takes the identity `peer` of the rank at the other end. Checks that it is
  // the identity that the stream was opened for, and warms the stream up.
  void OnOpen(const PeerStream& stream, const StreamIdentity& peer);
  // Notes that the peer has opened all its links.
  void OnReady(int peer) { peers_[peer].ready = true; }
  // Returns true if a stream with `peer` that ends must be opened again. The
  // peer may still be starting, or starting again.
  bool IsPatientWith(int peer) const {
    return !connected_ && !peers_[peer].ready;
  }
  void OnStartFailed(const PeerStream& stream, const absl::Status& status);
  // Dials again the streams whose time has come.
  void Redial();

  // Waits until every rank has opened all its links. An error ends the epoch.
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
  std::vector<Peer> peers_;  // Indexed by rank; this rank's entry is unused.
  bool ready_ = false;       // True: this rank has opened all links.
  bool connected_ = false;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_PEER_OPENING_H_
