// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/peer_failure.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/process/log.h"

namespace ringfleet::cluster {
namespace {

// A failing rank cancels its Link streams after it has written the cause on
// Control: another connection, which may be slower.
constexpr absl::Duration kVerdictDelay = absl::Milliseconds(200);
// The kernel ends the connections of a dying process a moment before its port,
// and not at once on all ranks. The port is asked after this time.
constexpr absl::Duration kTeardownTime = absl::Milliseconds(20);
// Closing waits for peers to read what was sent and the last words, as long as
// it sees one of them read something within kFarewellTime.
constexpr absl::Duration kFarewellTime = absl::Milliseconds(200);
constexpr absl::Duration kLongestFarewell = absl::Seconds(2);

const char* EndName(int end) {
  constexpr const char* kNames[PeerLanes::kEnds] = {"link", "right link",
                                                    "left link", "control"};
  return kNames[end];
}

absl::StatusCode CodeFromWire(uint32_t code) {
  return code >= 1 && code <= 16 ? static_cast<absl::StatusCode>(code)
                                 : absl::StatusCode::kAborted;
}

}  // namespace

PeerFailure::PeerFailure(std::shared_ptr<CompletionPoller> poller,
                         const LinkConfig& config, EpochCause& cause,
                         PeerMonitor& monitor, PeerLanes& lanes)
    : poller_(std::move(poller)),
      config_(config),
      cause_(cause),
      monitor_(monitor),
      lanes_(lanes),
      peers_(config.world.addresses.size()) {}

void PeerFailure::OnControl(int peer, const v1::ControlMessage& message) {
  switch (message.body_case()) {
    case v1::ControlMessage::kLeave:
      peers_[peer].left = true;
      monitor_.Forget(peer);
      AnswerHeard(peer);
      break;
    case v1::ControlMessage::kAbort: {
      const auto& abort = message.abort();
      if (cause_.Set({.status = absl::Status(CodeFromWire(abort.code()),
                                             abort.message()),
                      .origin = abort.message(),
                      .suspect = static_cast<int>(abort.suspect())})) {
        Spread();
      }
      AnswerHeard(peer);
      break;
    }
    case v1::ControlMessage::kHeard:
      peers_[peer].heard = true;
      break;
    default:
      break;
  }
}

// Once: a peer has one last word, and one that repeats it may not read what
// comes back.
void PeerFailure::AnswerHeard(int peer) {
  if (std::exchange(peers_[peer].answered, true)) return;
  v1::ControlMessage message;
  message.mutable_heard();
  lanes_.WriteControl(peer, std::move(message));
}

void PeerFailure::OnStreamLost(const PeerStream& stream,
                               const absl::Status& status) {
  const int rank = stream.peer();
  Peer& peer = peers_[rank];
  lanes_.SetLost(stream);
  const int ended = PeerLanes::EndIndex(stream);
  lanes_.DropWrites(rank, ended);
  if (peer.left) return;
  NoteLoss(peer, EndName(ended), status);
  bool link_lost = false;
  for (int lane = 0; lane < kLanes; ++lane) {
    link_lost |= lanes_.lost(rank, lane);
  }
  const bool lost = link_lost && lanes_.lost(rank, PeerLanes::kControlEnd);
  const bool port_closed = monitor_.AskClosed(rank, Deadline::Clock::now());
  if (lost && port_closed) return OnPeerLost(rank);
  const Deadline verdict =
      Deadline::After(lost ? kTeardownTime : kVerdictDelay);
  if (!peer.verdict.has_value() || verdict.when() < peer.verdict->when()) {
    peer.verdict = verdict;
  }
}

void PeerFailure::NoteLoss(Peer& peer, absl::string_view end,
                           const absl::Status& status) {
  for (auto& [ends, reason] : peer.losses) {
    if (reason != status.message()) continue;
    absl::StrAppend(&ends, ", ", end);
    return;
  }
  peer.losses.emplace_back(end, status.message());
}

void PeerFailure::OnPeerLost(int peer) {
  std::vector<std::string> losses;
  for (const auto& [ends, reason] : peers_[peer].losses) {
    losses.push_back(absl::StrCat(ends, ": ", reason));
  }
  Abort(absl::UnavailableError(absl::StrCat(
            "lost ", config_.PeerName(peer), ": ", absl::StrJoin(losses, "; "),
            monitor_.ExplainClosed(peer, Deadline::Clock::now()))),
        peer);
}

void PeerFailure::GiveUpLostPeers() {
  for (int rank = 0; rank < config_.world_size(); ++rank) {
    const Peer& peer = peers_[rank];
    if (!peer.verdict.has_value() || !peer.verdict->Expired() || peer.left) {
      continue;
    }
    monitor_.AskClosed(rank, Deadline::Clock::now());
    OnPeerLost(rank);
  }
}

void PeerFailure::Abort(const absl::Status& cause, int suspect) {
  if (cause_.Set({.status = cause,
                  .origin = absl::StrCat("rank ", config_.rank(), ": ",
                                         cause.message()),
                  .suspect = suspect})) {
    Spread();
  }
}

void PeerFailure::Spread() {
  if (std::exchange(spread_, true) || closed_) return;
  const EpochCause::Record cause = cause_.Get();
  RF_LOG(kWarning, "epoch ", config_.self.epoch,
         " aborted: ", cause.status.ToString(), "; suspected: rank ",
         cause.suspect);
  v1::ControlMessage message;
  message.mutable_abort()->set_code(static_cast<uint32_t>(cause.status.code()));
  message.mutable_abort()->set_message(cause.origin);
  message.mutable_abort()->set_suspect(static_cast<uint32_t>(cause.suspect));
  for (int peer = 0; peer < config_.world_size(); ++peer) {
    if (peer == config_.rank()) continue;
    lanes_.WriteControl(peer, message);
    lanes_.CancelLanes(peer);
  }
}

bool PeerFailure::Leave(const absl::Status& reason) {
  const bool leaves = !cause_.aborted();
  if (leaves) {
    v1::ControlMessage message;
    message.mutable_leave();
    for (int peer = 0; peer < config_.world_size(); ++peer) {
      lanes_.WriteControl(peer, message);
    }
  } else {
    Spread();
  }
  cause_.Set({.status = reason,
              .origin = std::string(reason.message()),
              .suspect = config_.rank()});
  closed_ = true;
  return leaves;
}

size_t PeerFailure::SayFarewell(bool leaves) {
  size_t left = 0;
  for (int rank = 0; rank < config_.world_size(); ++rank) {
    const Peer& peer = peers_[rank];
    left += lanes_.control_open(rank) && !peer.heard;
    // Nobody waits for what is sent to a peer that has left itself.
    if (leaves && !peer.left) left += lanes_.EndWrites(rank);
  }
  return left;
}

void PeerFailure::AwaitFarewell(bool leaves) {
  if (leaves) lanes_.DropFrames();
  const Deadline latest = Deadline::After(kLongestFarewell);
  for (size_t left = SayFarewell(leaves); left > 0;) {
    const Deadline patience = Deadline::After(kFarewellTime);
    size_t now_left = left;
    const bool moved = poller_->PollUntil(
        [&] { return (now_left = SayFarewell(leaves)) < left; },
        Deadline(std::min(patience.when(), latest.when())));
    if (!moved) return;
    left = now_left;
  }
}

}  // namespace ringfleet::cluster
