// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/peer_links.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/process/status_macros.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

// What a queued frame costs beside its message, so that a flood of empty
// frames is bounded too.
constexpr size_t kFrameOverheadBytes = 512;

size_t QueuedBytes(const LinkFrame& frame) {
  return frame.held_bytes() + kFrameOverheadBytes;
}

// Up to here a frame goes with the read that is owed, and leaves one owed: half
// of gRPC's smallest window, so that the sender of the next has room for it.
constexpr size_t kSmallFrameBytes = size_t{32} << 10;
// Answers to probes are looked for this often; they may be no completions.
constexpr absl::Duration kInquirySlice = absl::Milliseconds(2);
// After an abort the streams are cancelled. What gRPC has not let go of by
// then is in the hands of a peer that does not read.
constexpr absl::Duration kAbortedReleaseTime = absl::Seconds(1);

const char* LaneName(Lane lane) {
  constexpr const char* kNames[kLanes] = {"direct", "right", "left"};
  return kNames[static_cast<size_t>(lane)];
}

}  // namespace

PeerLinks::PeerLinks(std::shared_ptr<CompletionPoller> poller, Config config,
                     std::function<void()> on_end)
    : poller_(std::move(poller)),
      config_(std::move(config)),
      blamed_(config_.self.source),
      on_end_(std::move(on_end)),
      peers_(config_.world.addresses.size()),
      monitor_(config_.self.epoch, config_.self.source, config_.world.addresses,
               config_.recorder) {
  WantRings();
  ShareMemory();
}

PeerLinks::~PeerLinks() {
  CompletionPoller::Role role(poller_.get());
  Close(absl::CancelledError(
      absl::StrCat("epoch ", epoch(), " has ended on this rank")));
}

void PeerLinks::ForEachPeer(absl::FunctionRef<void(int, Peer&)> visit) {
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank()) visit(peer, peers_[peer]);
  }
}

std::string PeerLinks::PeerName(int peer) const {
  return absl::StrCat("rank ", peer, " (", config_.world.addresses[peer], ")");
}

std::string PeerLinks::PeerNames(absl::Span<const Source> sources) const {
  return absl::StrJoin(sources, ", ", [&](std::string* out, Source source) {
    absl::StrAppend(out, PeerName(source.peer));
  });
}

absl::Status PeerLinks::CheckOpen(int peer, Lane lane) {
  RF_CHECK(peer >= 0 && peer < world_size() && peer != rank());
  if (aborted()) return Cause();
  const End& end = peers_[peer].lane(lane);
  if (end.open) return absl::OkStatus();
  if (end.wanted) {
    return absl::UnavailableError(
        absl::StrCat("no link with ", PeerName(peer)));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no ", LaneName(lane), " lane with ", PeerName(peer),
                   ", which is no neighbour in a ring"));
}

absl::Status PeerLinks::Send(int peer, Lane lane, const FrameHeader& header,
                             absl::Span<const char> payload,
                             PayloadLedger& ledger) {
  CompletionPoller::Role role(poller_.get());
  RF_RETURN_IF_ERROR(CheckOpen(peer, lane));
  WriteFrame(peer, lane, header, payload, ledger);
  return absl::OkStatus();
}

void PeerLinks::WriteFrame(int peer, Lane lane, const FrameHeader& header,
                           absl::Span<const char> payload,
                           PayloadLedger& ledger) {
  End& end = peers_[peer].lane(lane);
  if (end.shared) {
    if (!end.lost) shared_->Send(peer, lane, header, payload, ledger);
  } else if (payload.size() <= kSmallFrameBytes) {
    MessagePool::Receipt receipt;
    grpc::ByteBuffer message = pool_.Write(header, payload, ledger, &receipt);
    const std::shared_ptr<PeerStream> stream = end.stream;
    stream->WriteSmall(std::move(message), [&] { return receipt.released(); });
  } else {
    end.stream->Write(pool_.Write(header, payload, ledger));
  }
}

absl::Status PeerLinks::Forward(int peer, Lane lane, const FrameHeader& header,
                                const FrameBody& frame) {
  const auto& body = static_cast<const LinkFrame&>(frame);
  CompletionPoller::Role role(poller_.get());
  RF_RETURN_IF_ERROR(CheckOpen(peer, lane));
  End& end = peers_[peer].lane(lane);
  if (end.shared) {
    if (!end.lost) shared_->Forward(peer, lane, header, body);
  } else {
    end.stream->Write(pool_.Forward(header, body));
  }
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
      End& end = peers_[source.peer].lane(source.lane);
      if (!end.frames.empty()) return true;
      // What a peer wrote before it left is still in its ring.
      lost &= end.lost && (shared_ == nullptr ||
                           !shared_->has_unread(source.peer, source.lane));
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
      poller_->BlockUntil([&] { return find() || aborted() || woken_.load(); },
                          deadline);
    } else {
      poller_->PollUntil([&] { return find() || aborted(); }, deadline);
    }
    if (!aborted() && all_lost) {
      RF_RETURN_IF_ERROR(AwaitLastWords(sources, deadline));
    }
    if (aborted()) return Cause();
    if (*index == sources.size()) {
      if (unless_woken && woken_.exchange(false)) return ReceivedFrame();
      if (sources.empty()) {
        return absl::DeadlineExceededError(
            "this rank has not computed its rows yet");
      }
      return ExplainDelay("no frame from ");
    }
    const Source& source = sources[*index];
    End& end = peers_[source.peer].lane(source.lane);
    LinkFramePtr next = end.frames.pop_front();
    end.queued_bytes -= QueuedBytes(*next);
    frame = std::move(next);
    if (end.read_due && end.queued_bytes < config_.max_queued_bytes) {
      end.read_due = false;
      end.stream->Read();
    }
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
    bool idle = true;
    for (int lane = 0; lane < kLanes; ++lane) idle &= WritesIdle(peer, lane);
    if (!idle) peers.push_back(peer);
  }
  return peers;
}

// The deadline has passed. Silence may take a moment more to explain.
absl::Status PeerLinks::ExplainDelay(absl::string_view what) {
  PeerWatch::Verdict verdict;
  const auto known = [&] {
    if (aborted()) return true;
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
  if (aborted()) return Cause();
  blamed_ = verdict.suspect;
  return absl::DeadlineExceededError(absl::StrCat(what, verdict.text));
}

// All lanes of `sources` have ended and no frame is left. Why, the peers say on
// Control, another connection, which may be slower; Housekeeping gives up in
// the end.
absl::Status PeerLinks::AwaitLastWords(absl::Span<const Source> sources,
                                       Deadline deadline) {
  const auto all_left = [&] {
    return std::all_of(
        sources.begin(), sources.end(),
        [&](const Source& source) { return peers_[source.peer].left; });
  };
  poller_->PollUntil([&] { return aborted() || all_left(); }, deadline);
  if (aborted() || !all_left()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(PeerNames(sources), " has left epoch ", epoch()));
}

absl::Status PeerLinks::AwaitReleased(const PayloadLedger& ledger,
                                      Deadline deadline) {
  if (ledger.released() && !aborted()) return absl::OkStatus();
  CompletionPoller::Role role(poller_.get());
  releasing_ = true;
  const auto done = absl::MakeCleanup([this] { releasing_ = false; });
  poller_->PollUntil([&] { return ledger.released() || aborted(); }, deadline,
                     kReleaseSlice);
  if (aborted()) {
    const Deadline give_up = Deadline::After(kAbortedReleaseTime);
    poller_->PollUntil([&] { return ledger.released(); },
                       Deadline(std::min(deadline.when(), give_up.when())),
                       kReleaseSlice);
    return Cause();
  }
  if (ledger.released()) return absl::OkStatus();
  return ExplainDelay("what was sent is not read by ");
}

bool PeerLinks::WritesIdle(int peer, int end) const {
  const End& to = peers_[peer].ends[end];
  if (to.stream == nullptr || to.lost) return true;
  const bool shared_idle =
      !to.shared || shared_->writes_idle(peer, static_cast<Lane>(end));
  return shared_idle && to.stream->writes_idle();
}

void PeerLinks::OnMessage(PeerStream& stream, const grpc::ByteBuffer& message) {
  if (stream.kind() == StreamKind::kControl) {
    OnControl(stream, message);
    stream.Read();
    return;
  }
  if (message.Length() == 0) return stream.ReadSoon();
  const int peer = stream.peer();
  LinkFramePtr frame = pool_.TakeFrame();
  const absl::Status status = frame->Parse(message);
  if (!status.ok()) {
    return AbortInRole(Annotate(status, PeerName(peer)), peer);
  }
  // Of one that came in parts, gRPC has made room known in the middle.
  const bool small =
      frame->payload.size() <= 1 && frame->payload_bytes <= kSmallFrameBytes;
  OnFrame(peer, stream.lane(), std::move(frame));
  End& end = EndOf(stream);
  end.read_due = end.queued_bytes >= config_.max_queued_bytes;
  if (end.read_due) return;
  if (small) {
    stream.ReadSoon();
  } else {
    stream.Read();
  }
}

bool PeerLinks::WantsFrame(int peer, Lane lane) {
  return peers_[peer].lane(lane).queued_bytes < config_.max_queued_bytes;
}

void PeerLinks::OnSharedFrame(int peer, Lane lane, LinkFramePtr frame) {
  OnFrame(peer, lane, std::move(frame));
}

void PeerLinks::OnSharedError(int peer, const absl::Status& status) {
  AbortInRole(Annotate(status, PeerName(peer)), peer);
}

void PeerLinks::OnFrame(int peer, Lane lane, LinkFramePtr frame) {
  const FrameHeader& header = frame->header;
  if (header.epoch != epoch()) {
    dropped_frames_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (header.source != static_cast<uint32_t>(peer)) {
    return AbortInRole(
        absl::DataLossError(absl::StrCat(
            PeerName(peer), " sends a frame of rank ", header.source)),
        peer);
  }
  monitor_.OnFrame(peer, header);
  const bool warm_up =
      header.op_descriptor == kWarmUpDescriptor && header.sequence == 0;
  if (aborted() || warm_up) return;
  End& end = peers_[peer].lane(lane);
  end.queued_bytes += QueuedBytes(*frame);
  end.frames.push_back(std::move(frame));
}

}  // namespace ringfleet::cluster
