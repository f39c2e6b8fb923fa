// SPDX-License-Identifier: Apache-2.0
// How an epoch ends: the first cause, from here or from any peer, reaches
// everybody over the Control streams, and everything is given back.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/process/log.h"
#include "cluster/process/status_macros.h"
#include "cluster/transport/peer_links.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

// A failing rank cancels its Link streams after it has written the cause on
// Control: another connection, which may be slower.
constexpr absl::Duration kVerdictDelay = absl::Milliseconds(200);
// Of a process that dies, the kernel ends the connections a moment before the
// port, and not at once on all ranks: whether it has ended shows after this.
constexpr absl::Duration kTeardownTime = absl::Milliseconds(20);
constexpr absl::Duration kRedialDelay = absl::Milliseconds(100);
// Closing waits for peers to read what was sent and the last words, as long as
// it sees one of them read something within kFarewellTime, and for memory. What
// a peer that stopped reading still holds by then is given up.
constexpr absl::Duration kFarewellTime = absl::Milliseconds(200);
constexpr absl::Duration kLongestFarewell = absl::Seconds(2);
constexpr absl::Duration kReleaseTime = absl::Seconds(1);

const char* EndName(int end) {
  constexpr const char* kNames[kLanes + 1] = {"link", "right link", "left link",
                                              "control"};
  return kNames[end];
}

absl::StatusCode CodeFromWire(uint32_t code) {
  return code >= 1 && code <= 16 ? static_cast<absl::StatusCode>(code)
                                 : absl::StatusCode::kAborted;
}

}  // namespace

v1::ControlMessage PeerLinks::NewControl() const {
  v1::ControlMessage message;
  message.set_epoch(epoch());
  message.set_source(static_cast<uint32_t>(rank()));
  return message;
}

void PeerLinks::WriteControl(Peer& peer, const v1::ControlMessage& message) {
  End& end = peer.control();
  if (!end.open || end.lost) return;
  const std::string bytes = message.SerializeAsString();
  const grpc::Slice slice(bytes);
  end.stream->Write(grpc::ByteBuffer(&slice, 1));
}

void PeerLinks::OnControl(PeerStream& stream, const grpc::ByteBuffer& message) {
  const int rank = stream.peer();
  std::vector<grpc::Slice> slices;
  std::vector<absl::Span<const char>> pieces;
  DumpPieces(message, &slices, &pieces);
  std::string bytes;
  for (const auto piece : pieces) bytes.append(piece.data(), piece.size());
  v1::ControlMessage control;
  if (!control.ParseFromString(bytes)) {
    return AbortInRole(
        absl::DataLossError(absl::StrCat("a control message of ",
                                         PeerName(rank), " is malformed")),
        rank);
  }
  if (control.epoch() != epoch()) return;
  switch (control.body_case()) {
    case v1::ControlMessage::kReady:
      peers_[rank].ready = true;
      break;
    case v1::ControlMessage::kLeave:
      peers_[rank].left = true;
      monitor_.Forget(rank);
      AnswerHeard(rank);
      break;
    case v1::ControlMessage::kHeartbeat:
      monitor_.OnHeartbeat(rank, control.heartbeat(), Deadline::Clock::now());
      break;
    case v1::ControlMessage::kAbort: {
      const auto& abort = control.abort();
      const absl::Status cause(CodeFromWire(abort.code()), abort.message());
      if (Record(cause, abort.message(), static_cast<int>(abort.suspect()))) {
        SpreadAbort();
      }
      AnswerHeard(rank);
      break;
    }
    case v1::ControlMessage::kHeard:
      peers_[rank].heard = true;
      break;
    case v1::ControlMessage::BODY_NOT_SET:
      break;
  }
}

// Once: a peer has one last word, and one that repeats it may not read what
// comes back.
void PeerLinks::AnswerHeard(int rank) {
  if (std::exchange(peers_[rank].answered, true)) return;
  v1::ControlMessage message = NewControl();
  message.mutable_heard();
  WriteControl(peers_[rank], message);
}

void PeerLinks::OnClosed(PeerStream& stream, const absl::Status& status) {
  const int rank = stream.peer();
  Peer& peer = peers_[rank];
  End& end = EndOf(stream);
  if (end.stream.get() != &stream) return;
  if (aborted() || closed_) {
    end.lost = true;
    return;
  }
  if (!connected_ && !peer.ready) return OnStartFailed(stream, status);
  end.lost = true;
  DropWrites(rank, EndIndex(stream));
  if (peer.left) return;
  NoteLoss(peer, EndName(EndIndex(stream)), status);
  bool link_lost = false;
  for (int lane = 0; lane < kLanes; ++lane) link_lost |= peer.ends[lane].lost;
  const bool lost = link_lost && peer.control().lost;
  const bool ended = monitor_.AskClosed(rank, Deadline::Clock::now());
  if (lost && ended) return OnPeerLost(rank);
  const Deadline verdict =
      Deadline::After(lost ? kTeardownTime : kVerdictDelay);
  if (!peer.verdict.has_value() || verdict.when() < peer.verdict->when()) {
    peer.verdict = verdict;
  }
}

void PeerLinks::NoteLoss(Peer& peer, absl::string_view end,
                         const absl::Status& status) {
  for (auto& [ends, reason] : peer.losses) {
    if (reason != status.message()) continue;
    absl::StrAppend(&ends, ", ", end);
    return;
  }
  peer.losses.emplace_back(end, status.message());
}

void PeerLinks::OnPeerLost(int rank) {
  std::vector<std::string> losses;
  for (const auto& [ends, reason] : peers_[rank].losses) {
    losses.push_back(absl::StrCat(ends, ": ", reason));
  }
  AbortInRole(absl::UnavailableError(absl::StrCat(
                  "lost ", PeerName(rank), ": ", absl::StrJoin(losses, "; "),
                  monitor_.ExplainClosed(rank, Deadline::Clock::now()))),
              rank);
}

// The peer is only starting, or starting again: be patient until the deadline.
void PeerLinks::OnStartFailed(PeerStream& stream, const absl::Status& status) {
  const int peer = stream.peer();
  End& end = EndOf(stream);
  DropWrites(peer, EndIndex(stream));
  const bool accepted_here = peer > rank();
  if (accepted_here) {
    end = End{.wanted = true};
  } else if (absl::IsUnavailable(status) || absl::IsCancelled(status)) {
    end = End{.wanted = true, .redial = Deadline::After(kRedialDelay)};
  } else {
    AbortInRole(Annotate(status, PeerName(peer)), peer);
  }
}

void PeerLinks::Housekeeping() {
  if (aborted() || closed_) return;
  SendHeartbeats();
  const auto silent = monitor_.Tick(Deadline::Clock::now());
  if (silent.has_value()) {
    return AbortInRole(absl::UnavailableError(silent->text), silent->suspect);
  }
  ForEachPeer([this](int rank, Peer& peer) {
    for (int end = 0; end <= kControlEnd; ++end) {
      const std::optional<Deadline>& redial = peer.ends[end].redial;
      if (redial.has_value() && redial->Expired())
        DialOne(rank, end, /*share=*/false);
    }
    if (peer.verdict.has_value() && peer.verdict->Expired() && !peer.left) {
      monitor_.AskClosed(rank, Deadline::Clock::now());
      OnPeerLost(rank);
    }
  });
}

void PeerLinks::SendHeartbeats() {
  const PeerMonitor::Time now = Deadline::Clock::now();
  if (!monitor_.HeartbeatDue(now)) return;
  v1::ControlMessage message = NewControl();
  *message.mutable_heartbeat() = monitor_.MakeHeartbeat(AwaitedPeers(), now);
  ForEachPeer([&](int, Peer& peer) {
    // Nothing piles up for a peer that does not read.
    const End& control = peer.control();
    if (control.open && control.stream->writes_idle()) {
      WriteControl(peer, message);
    }
  });
}

bool PeerLinks::Record(const absl::Status& cause, const std::string& origin,
                       int suspect) {
  MutexLock lock(&mu_);
  if (!cause_.ok()) return false;
  cause_ = cause;
  origin_ = origin;
  suspect_ = suspect;
  aborted_.store(true, std::memory_order_release);
  return true;
}

absl::Status PeerLinks::Cause() {
  MutexLock lock(&mu_);
  return cause_;
}

void PeerLinks::Interrupt(const absl::Status& cause) {
  RF_CHECK(!cause.ok());
  Record(cause, absl::StrCat("rank ", rank(), ": ", cause.message()), blamed_);
  poller_->Wake();
}

void PeerLinks::Abort(const absl::Status& cause) {
  Interrupt(cause);
  CompletionPoller::Role role(poller_.get());
  SpreadAbort();
}

void PeerLinks::AbortInRole(const absl::Status& cause, int suspect) {
  if (Record(cause, absl::StrCat("rank ", rank(), ": ", cause.message()),
             suspect)) {
    SpreadAbort();
  }
}

void PeerLinks::SpreadAbort() {
  if (std::exchange(abort_spread_, true) || closed_) return;
  v1::ControlMessage message = NewControl();
  {
    MutexLock lock(&mu_);
    RF_LOG(kWarning, "epoch ", epoch(), " aborted: ", cause_.ToString(),
           "; suspected: rank ", suspect_);
    message.mutable_abort()->set_code(static_cast<uint32_t>(cause_.code()));
    message.mutable_abort()->set_message(origin_);
    message.mutable_abort()->set_suspect(static_cast<uint32_t>(suspect_));
  }
  ForEachPeer([&](int rank, Peer& peer) {
    WriteControl(peer, message);
    for (int lane = 0; lane < kLanes; ++lane) {
      End& end = peer.ends[lane];
      end.frames.clear();
      end.queued_bytes = 0;
      if (end.stream != nullptr) end.stream->Cancel();
      DropWrites(rank, lane);
    }
  });
}

// Frames for shared memory that there was no room for yet.
void PeerLinks::DropWrites(int peer, int end) {
  if (peers_[peer].ends[end].shared) {
    shared_->DropWrites(peer, static_cast<Lane>(end));
  }
}

// Nobody receives here any more; what peers still send is read and dropped, so
// that the ends of their lanes are seen.
void PeerLinks::DropFrames() {
  ForEachPeer([](int, Peer& peer) {
    for (End& end : peer.ends) {
      end.frames.clear();
      end.queued_bytes = 0;
      if (std::exchange(end.read_due, false)) end.stream->Read();
    }
  });
}

size_t PeerLinks::SayFarewell(bool leaves) {
  size_t left = 0;
  ForEachPeer([&](int rank, Peer& peer) {
    const End& control = peer.control();
    left += control.open && !control.lost && !peer.heard;
    // What is sent to a peer that has left itself, nobody waits for.
    if (!leaves || peer.left) return;
    for (int i = 0; i < kLanes; ++i) {
      const End& end = peer.ends[i];
      if (!end.open || end.lost) continue;
      if (WritesIdle(rank, i)) end.stream->EndWrites();
      left += 1 + end.stream->unsent();
      if (end.shared) left += shared_->unsent(rank, static_cast<Lane>(i));
    }
  });
  return left;
}

void PeerLinks::AwaitFarewell(bool leaves) {
  if (leaves) DropFrames();
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

void PeerLinks::Close(const absl::Status& reason) {
  if (closed_) return;
  if (on_end_) on_end_();
  const bool leaves = !aborted();
  if (!leaves) {
    SpreadAbort();
  } else {
    v1::ControlMessage message = NewControl();
    message.mutable_leave();
    ForEachPeer([&](int, Peer& peer) { WriteControl(peer, message); });
  }
  Record(reason, std::string(reason.message()), rank());
  closed_ = true;
  if (poller_->closed()) return poller_->set_bypass(nullptr);
  AwaitFarewell(leaves);
  poller_->set_bypass(nullptr);
  ForEachPeer([this](int rank, Peer& peer) {
    for (int i = 0; i <= kControlEnd; ++i) {
      End& end = peer.ends[i];
      end.frames.clear();
      DropWrites(rank, i);
      if (end.stream == nullptr) continue;
      end.stream->set_events(nullptr);
      end.stream->Cancel();
      end.stream.reset();
    }
  });
  if (!pool_.released() &&
      !poller_->PollUntil([this] { return pool_.released(); },
                          Deadline::After(kReleaseTime), kReleaseSlice)) {
    RF_LOG(kError, "epoch ", epoch(),
           ": a peer that does not read still holds payload memory");
  }
}

}  // namespace ringfleet::cluster
