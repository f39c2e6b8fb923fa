// SPDX-License-Identifier: Apache-2.0
// The end of an epoch: the first cause, from here or from any peer, reaches
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

// Every function requires the poller's role, which guards all state. Another
// thread ends the epoch by EpochCause::Set; Spread follows in the role.
class PeerFailure {
 public:
  // The references must outlive this object.
  PeerFailure(std::shared_ptr<CompletionPoller> poller,
              const LinkConfig& config, EpochCause& cause, PeerMonitor& monitor,
              PeerLanes& lanes);

  // Ends the epoch with a cause found here, and tells the peers.
  void Abort(const absl::Status& cause, int suspect);
  // Tells the peers the cause and cancels the lanes. Idempotent.
  void Spread();

  // A peer says that it leaves, or why it ends the epoch, or that it has read
  // this rank's reason.
  void OnControl(int peer, const v1::ControlMessage& message);
  // A stream of an epoch that was connected has ended. The peer is lost when
  // its Control and a Link have ended and its port is closed, or after a
  // moment for its last words.
  void OnStreamLost(const PeerStream& stream, const absl::Status& status);
  // Gives up the peers whose moment has passed.
  void GiveUpLostPeers();

  // The peer said that it leaves.
  bool left(int peer) const { return peers_[peer].left; }
  // The links are closed, or about to be.
  bool closed() const { return closed_; }
  // Tells the peers that this rank leaves, unless it has aborted, and records
  // `reason` as the cause. Call once. Returns whether it leaves.
  bool Leave(const absl::Status& reason);
  // Lets the peers read what was sent, for a moment.
  void AwaitFarewell(bool leaves);

 private:
  struct Peer {
    bool left = false;
    bool heard = false;     // It has read why this rank ends the epoch.
    bool answered = false;  // It was told that its own reason was read.
    std::optional<Deadline> verdict;  // When lost streams count as a lost peer.
    // The ends that were lost, and how: "link, control", "Socket closed".
    std::vector<std::pair<std::string, std::string>> losses;
  };

  void AnswerHeard(int peer);
  static void NoteLoss(Peer& peer, absl::string_view end,
                       const absl::Status& status);
  void OnPeerLost(int peer);
  // Returns a count that falls with all that the peers take, to 0.
  size_t SayFarewell(bool leaves);

  const std::shared_ptr<CompletionPoller> poller_;
  const LinkConfig& config_;
  EpochCause& cause_;
  PeerMonitor& monitor_;
  PeerLanes& lanes_;
  std::vector<Peer> peers_;  // By rank; the own entry stays empty.
  bool spread_ = false;
  bool closed_ = false;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_PEER_FAILURE_H_
