// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/peer_links.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/process/log.h"
#include "cluster/process/status_macros.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

// Releases are no completions: looked for this often while blocked.
constexpr absl::Duration kReleaseSlice = absl::Milliseconds(1);
// Answers to probes are looked for this often; they may be no completions.
constexpr absl::Duration kInquirySlice = absl::Milliseconds(2);
// After an abort the streams are cancelled. A peer that does not read holds
// the memory that gRPC has not let go of by then.
constexpr absl::Duration kAbortedReleaseTime = absl::Seconds(1);
// Closing waits so long for memory. A peer that stopped reading may hold some
// of it for longer.
constexpr absl::Duration kReleaseTime = absl::Seconds(1);

}  // namespace

PeerLinks::PeerLinks(std::shared_ptr<CompletionPoller> poller,
                     LinkConfig config, std::function<void()> on_end)
    : poller_(std::move(poller)),
      config_(std::move(config)),
      blamed_(config_.rank()),
      on_end_(std::move(on_end)),
      monitor_(config_.self.epoch, config_.rank(), config_.world.addresses,
               config_.recorder, config_.round_trips),
      lanes_(poller_, config_, cause_, monitor_,
             [this](const absl::Status& cause, int peer) {
               failure_.Abort(cause, peer);
             }),
      failure_(poller_, config_, cause_, monitor_, lanes_),
      opening_(poller_, config_, cause_, monitor_, lanes_, failure_, this) {}

PeerLinks::~PeerLinks() {
  CompletionPoller::Role role(poller_.get());
  Close(absl::CancelledError(
      absl::StrCat("epoch ", epoch(), " has ended on this rank")));
}

std::string PeerLinks::PeerNames(absl::Span<const Source> sources) const {
  return absl::StrJoin(sources, ", ", [&](std::string* out, Source source) {
    absl::StrAppend(out, config_.PeerName(source.peer));
  });
}

absl::Status PeerLinks::Send(int peer, Lane lane, const FrameHeader& header,
                             absl::Span<const char> payload,
                             PayloadLedger& ledger) {
  CompletionPoller::Role role(poller_.get());
  RF_RETURN_IF_ERROR(lanes_.CheckOpen(peer, lane));
  lanes_.Write(peer, lane, header, payload, ledger);
  return absl::OkStatus();
}

absl::Status PeerLinks::Forward(int peer, Lane lane, const FrameHeader& header,
                                const FrameBody& frame) {
  CompletionPoller::Role role(poller_.get());
  RF_RETURN_IF_ERROR(lanes_.CheckOpen(peer, lane));
  lanes_.Forward(peer, lane, header, static_cast<const LinkFrame&>(frame));
  return absl::OkStatus();
}

absl::StatusOr<ReceivedFrame> PeerLinks::Receive(
    absl::Span<const Source> sources, Deadline deadline, size_t* index) {
  return ReceiveFrame(sources, deadline, /*unless_woken=*/false, index);
}

absl::StatusOr<ReceivedFrame> PeerLinks::ReceiveUnlessWoken(
    absl::Span<const Source> sources, Deadline deadline, size_t* index) {
  return ReceiveFrame(sources, deadline, /*unless_woken=*/true, index);
}

void PeerLinks::Wake() {
  woken_.store(true);
  poller_->Wake();
}

absl::StatusOr<ReceivedFrame> PeerLinks::ReceiveFrame(
    absl::Span<const Source> sources, Deadline deadline, bool unless_woken,
    size_t* index) {
  for (const Source& source : sources) {
    RF_CHECK(source.peer >= 0 && source.peer < world_size() &&
             source.peer != rank());
  }
  bool all_lost = false;
  const auto find = [&] {
    bool lost = !sources.empty();
    for (*index = 0; *index < sources.size(); ++*index) {
      const Source& source = sources[*index];
      if (lanes_.HasFrame(source)) return true;
      lost &= lanes_.Drained(source);
    }
    all_lost = lost;
    return lost;
  };

  ReceivedFrame frame;
  {
    CompletionPoller::Role role(poller_.get());
    awaited_ = sources;
    const auto done = absl::MakeCleanup([this] { awaited_ = {}; });
    if (unless_woken) {
      poller_->BlockUntil(
          [&] { return find() || cause_.aborted() || woken_.load(); },
          deadline);
    } else {
      poller_->PollUntil([&] { return find() || cause_.aborted(); }, deadline);
    }
    if (!cause_.aborted() && all_lost) {
      RF_RETURN_IF_ERROR(AwaitLastWords(sources, deadline));
    }
    if (cause_.aborted()) return Cause();
    if (*index == sources.size()) {
      if (unless_woken && woken_.exchange(false)) return ReceivedFrame();
      if (sources.empty()) {
        return absl::DeadlineExceededError(
            "this rank has not computed its rows yet");
      }
      return ExplainDelay("no frame from ");
    }
    frame = lanes_.TakeFrame(sources[*index]);
  }
  const absl::Status intact = CheckCrc(frame.get(), sources[*index].peer);
  if (!intact.ok()) {
    blamed_ = sources[*index].peer;
    return intact;
  }
  return frame;
}

std::vector<int> PeerLinks::AwaitedPeers() const {
  std::vector<int> peers;
  // Each once: a ring of two waits for the same peer on two lanes.
  for (const Source& source : awaited_) {
    if (std::find(peers.begin(), peers.end(), source.peer) == peers.end()) {
      peers.push_back(source.peer);
    }
  }
  if (!releasing_) return peers;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (!lanes_.LanesIdle(peer)) peers.push_back(peer);
  }
  return peers;
}

// The deadline has passed. Silence may take a moment more to explain.
absl::Status PeerLinks::ExplainDelay(absl::string_view what) {
  PeerWatch::Verdict verdict;
  const auto known = [&] {
    if (cause_.aborted()) return true;
    const PeerMonitor::Time now = Deadline::Clock::now();
    const std::vector<int> peers = AwaitedPeers();
    if (peers.empty()) {
      verdict = {.suspect = rank(), .text = "nobody: gRPC holds it"};
      return true;
    }
    // Where there is no reason to be seen, another rank may have one.
    const bool settled = monitor_.Settled(now);
    verdict = monitor_.Explain(peers, now);
    return settled && verdict.certain;
  };
  poller_->PollUntil(known, Deadline::After(PeerMonitor::kInquiryTime),
                     kInquirySlice);
  if (cause_.aborted()) return Cause();
  blamed_ = verdict.suspect;
  return absl::DeadlineExceededError(absl::StrCat(what, verdict.text));
}

// All lanes of `sources` have ended and no frame is left. The peers say why on
// Control, another connection, which may be slower; Housekeeping gives up in
// the end.
absl::Status PeerLinks::AwaitLastWords(absl::Span<const Source> sources,
                                       Deadline deadline) {
  const auto all_left = [&] {
    return std::all_of(
        sources.begin(), sources.end(),
        [&](const Source& source) { return failure_.left(source.peer); });
  };
  poller_->PollUntil([&] { return cause_.aborted() || all_left(); }, deadline);
  if (cause_.aborted() || !all_left()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(PeerNames(sources), " has left epoch ", epoch()));
}

absl::Status PeerLinks::AwaitReleased(const PayloadLedger& ledger,
                                      Deadline deadline) {
  if (ledger.released() && !cause_.aborted()) return absl::OkStatus();
  CompletionPoller::Role role(poller_.get());
  releasing_ = true;
  const auto done = absl::MakeCleanup([this] { releasing_ = false; });
  poller_->PollUntil([&] { return ledger.released() || cause_.aborted(); },
                     deadline, kReleaseSlice);
  if (cause_.aborted()) {
    const Deadline give_up = Deadline::After(kAbortedReleaseTime);
    poller_->PollUntil([&] { return ledger.released(); },
                       Deadline(std::min(deadline.when(), give_up.when())),
                       kReleaseSlice);
    return Cause();
  }
  if (ledger.released()) return absl::OkStatus();
  return ExplainDelay("what was sent is not read by ");
}

void PeerLinks::OnOpen(PeerStream& stream, const StreamIdentity& peer) {
  opening_.OnOpen(stream, peer);
}

void PeerLinks::OnMessage(PeerStream& stream, const grpc::ByteBuffer& message) {
  if (stream.kind() == StreamKind::kLink) {
    return lanes_.OnMessage(stream, message);
  }
  OnControl(stream.peer(), message);
  stream.Read();
}

void PeerLinks::OnControl(int peer, const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  std::vector<absl::Span<const char>> pieces;
  DumpPieces(message, &slices, &pieces);
  std::string bytes;
  for (const auto piece : pieces) bytes.append(piece.data(), piece.size());
  v1::ControlMessage control;
  if (!control.ParseFromString(bytes)) {
    return failure_.Abort(
        absl::DataLossError(absl::StrCat(
            "a control message of ", config_.PeerName(peer), " is malformed")),
        peer);
  }
  if (control.epoch() != epoch()) return;
  switch (control.body_case()) {
    case v1::ControlMessage::kReady:
      return opening_.OnReady(peer);
    case v1::ControlMessage::kHeartbeat:
      return monitor_.OnHeartbeat(peer, control.heartbeat(),
                                  Deadline::Clock::now());
    default:
      return failure_.OnControl(peer, control);
  }
}

void PeerLinks::OnClosed(PeerStream& stream, const absl::Status& status) {
  if (!lanes_.Holds(stream)) return;
  if (cause_.aborted() || failure_.closed()) return lanes_.SetLost(stream);
  if (opening_.IsPatientWith(stream.peer())) {
    return opening_.OnStartFailed(stream, status);
  }
  failure_.OnStreamLost(stream, status);
}

void PeerLinks::Housekeeping() {
  if (cause_.aborted() || failure_.closed()) return;
  SendHeartbeats();
  const auto silent = monitor_.Tick(Deadline::Clock::now());
  if (silent.has_value()) {
    return failure_.Abort(absl::UnavailableError(silent->text),
                          silent->suspect);
  }
  opening_.Redial();
  failure_.GiveUpLostPeers();
}

void PeerLinks::SendHeartbeats() {
  const PeerMonitor::Time now = Deadline::Clock::now();
  if (!monitor_.HeartbeatDue(now)) return;
  v1::ControlMessage message;
  *message.mutable_heartbeat() = monitor_.MakeHeartbeat(AwaitedPeers(), now);
  for (int peer = 0; peer < world_size(); ++peer) {
    // Nothing piles up for a peer that does not read.
    if (!lanes_.ControlIdle(peer)) continue;
    monitor_.AddEcho(peer, now, message.mutable_heartbeat());
    lanes_.WriteControl(peer, message);
  }
}

void PeerLinks::Interrupt(const absl::Status& cause) {
  RF_CHECK(!cause.ok());
  cause_.Set({.status = cause,
              .origin = absl::StrCat("rank ", rank(), ": ", cause.message()),
              .suspect = blamed_});
  poller_->Wake();
}

void PeerLinks::Abort(const absl::Status& cause) {
  Interrupt(cause);
  CompletionPoller::Role role(poller_.get());
  failure_.Spread();
}

void PeerLinks::Close(const absl::Status& reason) {
  if (failure_.closed()) return;
  if (on_end_) on_end_();
  const bool leaves = failure_.Leave(reason);
  if (poller_->closed()) return poller_->set_bypass(nullptr);
  failure_.AwaitFarewell(leaves);
  poller_->set_bypass(nullptr);
  lanes_.Close();
  if (!lanes_.released() &&
      !poller_->PollUntil([this] { return lanes_.released(); },
                          Deadline::After(kReleaseTime), kReleaseSlice)) {
    RF_LOG(kError, "epoch ", epoch(),
           ": a peer that does not read still holds payload memory");
  }
}

}  // namespace ringfleet::cluster
