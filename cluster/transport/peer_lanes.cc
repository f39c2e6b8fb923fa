// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/peer_lanes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/log.h"
#include "cluster/process/status_macros.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

// The cost of a queued frame beside its message, so that a flood of empty
// frames is bounded too.
constexpr size_t kFrameOverheadBytes = 512;

size_t QueuedBytes(const LinkFrame& frame) {
  return frame.held_bytes() + kFrameOverheadBytes;
}

// Up to here a frame goes with the read that is owed, and leaves one owed: half
// of gRPC's smallest window, so that the sender of the next has room for it.
constexpr size_t kSmallFrameBytes = size_t{32} << 10;

const char* LaneName(Lane lane) {
  constexpr const char* kNames[kLanes] = {"direct", "right", "left"};
  return kNames[static_cast<size_t>(lane)];
}

}  // namespace

std::string LinkConfig::PeerName(int peer) const {
  return absl::StrCat("rank ", peer, " (", world.addresses[peer], ")");
}

PeerLanes::PeerLanes(std::shared_ptr<CompletionPoller> poller,
                     const LinkConfig& config, const EpochCause& cause,
                     PeerMonitor& monitor, ErrorHandler on_error)
    : poller_(std::move(poller)),
      config_(config),
      cause_(cause),
      monitor_(monitor),
      on_error_(std::move(on_error)),
      peers_(config.world.addresses.size()) {
  WantRings();
  ShareMemory();
}

void PeerLanes::WantRings() {
  for (int peer = 0; peer < config_.world_size(); ++peer) {
    if (peer == config_.rank()) continue;
    LaneOf(peer, Lane::kDirect).wanted = true;
    peers_[peer][kControlEnd].wanted = true;
  }
  for (const std::vector<int>& ring : config_.world.rings) {
    for (size_t i = 0; i < ring.size(); ++i) {
      const int next = ring[(i + 1) % ring.size()];
      const bool neighbours =
          ring[i] == config_.rank() || next == config_.rank();
      if (next == ring[i] || !neighbours) continue;
      const int neighbour = next == config_.rank() ? ring[i] : next;
      LaneOf(neighbour, Lane::kRight).wanted = true;
      LaneOf(neighbour, Lane::kLeft).wanted = true;
    }
  }
}

// Without it, for whatever reason, frames travel in the streams.
void PeerLanes::ShareMemory() {
  if (config_.world.transport == TransportKind::kGrpc ||
      config_.world_size() == 1) {
    return;
  }
  absl::StatusOr<std::unique_ptr<SharedLanes>> shared = SharedLanes::Create(
      config_.self.epoch, config_.rank(), config_.world_size(), &pool_, this);
  if (!shared.ok()) {
    RF_LOG(kWarning, "epoch ", config_.self.epoch, ": ",
           shared.status().message());
    return;
  }
  shared_ = *std::move(shared);
}

void PeerLanes::SetStream(int peer, int end,
                          std::shared_ptr<PeerStream> stream) {
  peers_[peer][end] = End{.wanted = true, .stream = std::move(stream)};
}

bool PeerLanes::AllOpen(int peer) const {
  for (const End& end : peers_[peer]) {
    if (end.wanted && !end.open) return false;
  }
  return true;
}

bool PeerLanes::AllOpen() const {
  for (int peer = 0; peer < config_.world_size(); ++peer) {
    if (!AllOpen(peer)) return false;
  }
  return true;
}

// If only one side can open the other's segment, only it writes there.
bool PeerLanes::Share(int peer, Lane lane, absl::string_view offer) {
  if (shared_ == nullptr || offer.empty() || !shared_->Listen(peer, lane)) {
    return false;
  }
  poller_->set_bypass(shared_.get());
  End& end = LaneOf(peer, lane);
  end.shared = shared_->Attach(peer, lane, offer).ok();
  return end.shared;
}

int PeerLanes::shared_lanes() const {
  int count = 0;
  for (const auto& ends : peers_) {
    for (const End& end : ends) count += end.shared;
  }
  return count;
}

void PeerLanes::SettleShared() {
  if (shared_ == nullptr) return;
  int lanes = 0;
  for (const auto& ends : peers_) {
    for (int lane = 0; lane < kLanes; ++lane) lanes += ends[lane].wanted;
  }
  shared_->set_exclusive(shared_lanes() == lanes);
}

absl::Status PeerLanes::CheckOpen(int peer, Lane lane) const {
  RF_CHECK(peer >= 0 && peer < config_.world_size() && peer != config_.rank());
  if (cause_.aborted()) return cause_.status();
  const End& end = LaneOf(peer, lane);
  if (end.open) return absl::OkStatus();
  if (end.wanted) {
    return absl::UnavailableError(
        absl::StrCat("no link with ", config_.PeerName(peer)));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no ", LaneName(lane), " lane with ", config_.PeerName(peer),
                   ", which is no neighbour in a ring"));
}

void PeerLanes::Write(int peer, Lane lane, const FrameHeader& header,
                      absl::Span<const char> payload, PayloadLedger& ledger) {
  End& end = LaneOf(peer, lane);
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

void PeerLanes::Forward(int peer, Lane lane, const FrameHeader& header,
                        const LinkFrame& frame) {
  End& end = LaneOf(peer, lane);
  if (end.shared) {
    if (!end.lost) shared_->Forward(peer, lane, header, frame);
  } else {
    end.stream->Write(pool_.Forward(header, frame));
  }
}

void PeerLanes::WriteControl(int peer, v1::ControlMessage message) {
  if (!control_open(peer)) return;
  message.set_epoch(config_.self.epoch);
  message.set_source(static_cast<uint32_t>(config_.rank()));
  const std::string bytes = message.SerializeAsString();
  const grpc::Slice slice(bytes);
  peers_[peer][kControlEnd].stream->Write(grpc::ByteBuffer(&slice, 1));
}

bool PeerLanes::WritesIdle(int peer, int end) const {
  const End& to = peers_[peer][end];
  if (to.stream == nullptr || to.lost) return true;
  const bool shared_idle =
      !to.shared || shared_->writes_idle(peer, static_cast<Lane>(end));
  return shared_idle && to.stream->writes_idle();
}

bool PeerLanes::LanesIdle(int peer) const {
  bool idle = true;
  for (int lane = 0; lane < kLanes; ++lane) idle &= WritesIdle(peer, lane);
  return idle;
}

bool PeerLanes::AllIdle() const {
  for (int peer = 0; peer < config_.world_size(); ++peer) {
    if (!LanesIdle(peer) || !WritesIdle(peer, kControlEnd)) return false;
  }
  return true;
}

void PeerLanes::OnMessage(PeerStream& stream, const grpc::ByteBuffer& message) {
  if (message.Length() == 0) return stream.ReadSoon();
  const int peer = stream.peer();
  LinkFramePtr frame = pool_.TakeFrame();
  const absl::Status status = frame->Parse(message);
  if (!status.ok()) {
    return on_error_(Annotate(status, config_.PeerName(peer)), peer);
  }
  // gRPC has made room known in the middle of a payload that came in parts.
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

bool PeerLanes::WantsFrame(int peer, Lane lane) {
  return LaneOf(peer, lane).queued_bytes < config_.max_queued_bytes;
}

void PeerLanes::OnSharedFrame(int peer, Lane lane, LinkFramePtr frame) {
  OnFrame(peer, lane, std::move(frame));
}

void PeerLanes::OnSharedError(int peer, const absl::Status& status) {
  on_error_(Annotate(status, config_.PeerName(peer)), peer);
}

void PeerLanes::OnFrame(int peer, Lane lane, LinkFramePtr frame) {
  const FrameHeader& header = frame->header;
  if (header.epoch != config_.self.epoch) {
    dropped_frames_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (header.source != static_cast<uint32_t>(peer)) {
    return on_error_(
        absl::DataLossError(absl::StrCat(
            config_.PeerName(peer), " sends a frame of rank ", header.source)),
        peer);
  }
  monitor_.OnFrame(peer, header);
  const bool warm_up =
      header.op_descriptor == kWarmUpDescriptor && header.sequence == 0;
  if (cause_.aborted() || warm_up) return;
  End& end = LaneOf(peer, lane);
  end.queued_bytes += QueuedBytes(*frame);
  end.frames.push_back(std::move(frame));
}

LinkFramePtr PeerLanes::TakeFrame(const Source& source) {
  End& end = LaneOf(source.peer, source.lane);
  LinkFramePtr frame = end.frames.pop_front();
  end.queued_bytes -= QueuedBytes(*frame);
  if (end.read_due && end.queued_bytes < config_.max_queued_bytes) {
    end.read_due = false;
    end.stream->Read();
  }
  return frame;
}

void PeerLanes::CancelLanes(int peer) {
  for (int lane = 0; lane < kLanes; ++lane) {
    End& end = peers_[peer][lane];
    end.frames.clear();
    end.queued_bytes = 0;
    if (end.stream != nullptr) end.stream->Cancel();
    DropWrites(peer, lane);
  }
}

void PeerLanes::DropWrites(int peer, int end) {
  if (peers_[peer][end].shared) {
    shared_->DropWrites(peer, static_cast<Lane>(end));
  }
}

void PeerLanes::DropFrames() {
  for (auto& ends : peers_) {
    for (End& end : ends) {
      end.frames.clear();
      end.queued_bytes = 0;
      if (std::exchange(end.read_due, false)) end.stream->Read();
    }
  }
}

size_t PeerLanes::EndWrites(int peer) {
  size_t left = 0;
  for (int i = 0; i < kLanes; ++i) {
    const End& end = peers_[peer][i];
    if (!end.open || end.lost) continue;
    if (WritesIdle(peer, i)) end.stream->EndWrites();
    left += 1 + end.stream->unsent();
    if (end.shared) left += shared_->unsent(peer, static_cast<Lane>(i));
  }
  return left;
}

void PeerLanes::Close() {
  for (int peer = 0; peer < config_.world_size(); ++peer) {
    for (int i = 0; i < kEnds; ++i) {
      End& end = peers_[peer][i];
      end.frames.clear();
      DropWrites(peer, i);
      if (end.stream == nullptr) continue;
      end.stream->set_events(nullptr);
      end.stream->Cancel();
      end.stream.reset();
    }
  }
}

}  // namespace ringfleet::cluster
