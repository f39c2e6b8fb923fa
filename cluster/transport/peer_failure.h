// SPDX-License-Identifier: Apache-2.0
// Ends an epoch. The first cause, found by this rank or by a peer, reaches
// every rank over the Control streams.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_PEER_FAILURE_H_
#define RINGFLEET_CLUSTER_TRANSPORT_PEER_FAILURE_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cluster/process/deadline.h"
#include "cluster/transport/completion_poller.h"
#include "cluster/transport/epoch_cause.h"
#include "cluster/transport/peer_lanes.h"
#include "cluster/transport/peer_monitor.h"
#include "cluster/transport/peer_stream.h"
#include "protos/collective.pb.h"

namespace ringfleet::cluster {

// Every function requires the poller's role, which guards all state. A thread
// without the role ends the epoch by EpochCause::Set. Spread is then called in
// the role.
class PeerFailure {
 public:
  // The references must outlive this object.
  PeerFailure(std::shared_ptr<CompletionPoller> poller,
              const LinkConfig& config, EpochCause& cause, PeerMonitor& monitor,
              PeerLanes& lanes);

  // Ends the epoch with a cause that this rank found, and tells the peers.
  // `suspect` is the rank to blame.
  void Abort(const absl::Status& cause, int suspect);
  // Tells the peers the cause and cancels the lanes. Idempotent.
  void Spread();

  // Takes a peer's message that it leaves, that it ends the epoch and why, or
  // that it has read why this rank ends the epoch.
  void OnControl(int peer, const v1::ControlMessage& message);
  // Takes the end of a stream of a connected epoch. If the peer's Control and a
  // Link have ended and its port is closed, the peer is lost at once. Otherwise
  // GiveUpLostPeers counts it as lost after a short time, in which its last
  // messages may arrive.
  void OnStreamLost(const PeerStream& stream, const absl::Status& status);
  // Counts a peer as lost if its short time (see OnStreamLost) has passed. A
  // lost peer ends the epoch.
  void GiveUpLostPeers();

  // Returns true if the peer has said that it leaves.
  bool left(int peer) const { return peers_[peer].left; }
  // Returns true once Leave was called.
  bool closed() const { return closed_; }
  // Records `reason` as the cause and tells the peers that this rank leaves,
  // unless the epoch has already ended. Returns true if this rank leaves. Call
  // it once.
  bool Leave(const absl::Status& reason);
  // Waits a short time until peers have read all that this rank has sent.
  // `leaves` is the result of Leave.
  void AwaitFarewell(bool leaves);

 private:
  struct Peer {
    bool left = false;
    bool heard = false;               // Has read why this rank ends the epoch.
    bool answered = false;            // Was told that its reason was read.
    std::optional<Deadline> verdict;  // Time at which the peer counts as lost.
    // The lost ends and the reasons: {"link, control", "Socket closed"}.
    std::vector<std::pair<std::string, std::string>> losses;
  };

  void AnswerHeard(int peer);
  static void NoteLoss(Peer& peer, absl::string_view end,
                       const absl::Status& status);
  void OnPeerLost(int peer);
  // Returns a number that falls to 0 as peers read all that this rank has sent.
  size_t SayFarewell(bool leaves);

  const std::shared_ptr<CompletionPoller> poller_;
  const LinkConfig& config_;
  EpochCause& cause_;
  PeerMonitor& monitor_;
  PeerLanes& lanes_;
  std::vector<Peer> peers_;  // Indexed by rank; this rank's entry is unused.
  bool spread_ = false;
  bool closed_ = false;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_PEER_FAILURE_H_
