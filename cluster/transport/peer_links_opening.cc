// SPDX-License-Identifier: Apache-2.0
// How the links of an epoch come to be: the higher rank of a pair dials, and
// nobody is ready before every stream is open and warm.
#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "cluster/process/log.h"
#include "cluster/rpc/channel.h"
#include "cluster/rpc/host_address.h"
#include "cluster/transport/peer_links.h"
#include "cluster/wire/crc32c.h"

namespace ringfleet::cluster {
namespace {

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address) {
  grpc::ChannelArguments args = DirectArguments();
  // Retries keep what was sent until the peer answers.
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Flow-control windows grow only by this estimate.
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 1);
  // A host that vanishes is noticed after 20 s; pings are answered during long
  // computations too, by the poller's background thread.
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return OpenChannel(address, args);
}

// What warm-up frames carry.
constexpr char kZeros[size_t{256} << 10] = {};

bool IsNumeric(const std::string& host) {
  in6_addr address;
  return inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

// "127.0.0.1:50052" of "ipv4:127.0.0.1:50052", "[::1]:50052" of
// "ipv6:%5B::1%5D:50052"; "" of anything else.
std::string NumericAddress(absl::string_view remote) {
  if (!absl::ConsumePrefix(&remote, "ipv4:") &&
      !absl::ConsumePrefix(&remote, "ipv6:")) {
    return "";
  }
  return absl::StrReplaceAll(remote, {{"%5B", "["}, {"%5D", "]"}});
}

}  // namespace

void PeerLinks::WantRings() {
  ForEachPeer([](int, Peer& peer) {
    peer.lane(Lane::kDirect).wanted = true;
    peer.control().wanted = true;
  });
  for (const std::vector<int>& ring : config_.world.rings) {
    for (size_t i = 0; i < ring.size(); ++i) {
      const int next = ring[(i + 1) % ring.size()];
      if (next == ring[i] || (ring[i] != rank() && next != rank())) continue;
      Peer& neighbour = peers_[next == rank() ? ring[i] : next];
      neighbour.lane(Lane::kRight).wanted = true;
      neighbour.lane(Lane::kLeft).wanted = true;
    }
  }
}

// Without it, for whatever reason, frames travel in the streams.
void PeerLinks::ShareMemory() {
  if (config_.world.transport == TransportKind::kGrpc || world_size() == 1) {
    return;
  }
  absl::StatusOr<std::unique_ptr<SharedLanes>> shared =
      SharedLanes::Create(epoch(), rank(), world_size(), &pool_, this);
  if (!shared.ok()) {
    RF_LOG(kWarning, "epoch ", epoch(), ": ", shared.status().message());
    return;
  }
  shared_ = *std::move(shared);
}

bool PeerLinks::Listen(int peer, Lane lane) {
  if (!shared_->Listen(peer, lane)) return false;
  poller_->set_bypass(shared_.get());
  return true;
}

int PeerLinks::shared_lanes() const {
  int count = 0;
  for (const Peer& peer : peers_) {
    for (int lane = 0; lane < kLanes; ++lane) count += peer.ends[lane].shared;
  }
  return count;
}

void PeerLinks::Dial() {
  for (int peer = 0; peer < rank(); ++peer) {
    for (int end = 0; end <= kControlEnd; ++end) {
      if (peers_[peer].ends[end].wanted) DialOne(peer, end, /*share=*/true);
    }
  }
}

void PeerLinks::DialOne(int peer, int end, bool share) {
  StreamIdentity self = config_.self;
  if (end != kControlEnd) self.lane = static_cast<Lane>(end);
  // A ring serves the first attempt only: afterwards something may be in it.
  if (share && end != kControlEnd && shared_ != nullptr) {
    self.shared = shared_->offer();
  }
  peers_[peer].ends[end] =
      End{.wanted = true,
          .stream = ClientStream::Dial(
              poller_,
              end == kControlEnd ? StreamKind::kControl : StreamKind::kLink,
              NewChannel(config_.world.addresses[peer]), self, peer, this)};
}

void PeerLinks::Admit(std::shared_ptr<ServerStream> stream,
                      const StreamIdentity& caller) {
  const int peer = caller.source;
  if (aborted()) return stream->Refuse(Cause());
  if (peer <= rank() || peer >= world_size()) {
    return stream->Refuse(absl::InvalidArgumentError(
        absl::StrCat("rank ", peer, " calls rank ", rank(), " of ",
                     world_size(), "; only higher ranks do")));
  }
  stream->set_peer(peer, caller.lane);
  End& end = EndOf(*stream);
  absl::Status disagreement;
  if (caller.config != config_.self.config) {
    disagreement = absl::FailedPreconditionError(absl::StrCat(
        "ranks disagree in their configuration: rank ", peer, " has ",
        caller.config, ", rank ", rank(), " has ", config_.self.config));
  } else if (!end.wanted) {
    disagreement = absl::FailedPreconditionError(
        absl::StrCat("ranks disagree in their rings: rank ", peer,
                     " takes rank ", rank(), " for a neighbour"));
  }
  if (!disagreement.ok()) {
    stream->Refuse(disagreement);
    // Who calls in the name of a rank that is here already is a stranger.
    if (connected_ || end.stream != nullptr) return;
    return AbortInRole(disagreement, peer);
  }
  if (end.stream != nullptr) {
    // While links open, a caller whose connection broke may be back before the
    // loss is seen here: it calls again, and finds out in time whether there
    // are two of it.
    const absl::StatusCode code = connected_
                                      ? absl::StatusCode::kFailedPrecondition
                                      : absl::StatusCode::kUnavailable;
    return stream->Refuse(absl::Status(
        code, absl::StrCat("rank ", peer, " already has this stream with rank ",
                           rank(), " in epoch ", epoch())));
  }
  end = End{.wanted = true, .stream = stream};
  stream->set_events(this);
  StreamIdentity self = config_.self;
  self.lane = caller.lane;
  if (shared_ != nullptr && !caller.shared.empty() &&
      Listen(peer, caller.lane)) {
    // If only one side can open the other's segment, only it writes there.
    const absl::Status status =
        shared_->Attach(peer, caller.lane, caller.shared);
    end.shared = status.ok();
    if (end.shared) self.shared = shared_->offer();
  }
  stream->Accept(self);
}

void PeerLinks::OnOpen(PeerStream& stream, const StreamIdentity& peer) {
  const int rank = stream.peer();
  if (peer.epoch != epoch() || peer.source != rank ||
      peer.config != config_.self.config || peer.lane != stream.lane()) {
    return AbortInRole(
        absl::FailedPreconditionError(absl::StrCat(
            PeerName(rank), " answers as rank ", peer.source, " of epoch ",
            peer.epoch, " with configuration ", peer.config, " on lane ",
            static_cast<int>(peer.lane), ", want rank ", rank, ", ", epoch(),
            ", ", config_.self.config, ", ", static_cast<int>(stream.lane()))),
        rank);
  }
  End& end = EndOf(stream);
  end.open = true;
  LocatePeer(stream);
  if (stream.kind() == StreamKind::kControl) {
    // The stream before, on which it was said, has broken.
    if (ready_) SendReady(peers_[rank]);
    return;
  }
  const bool dialled_here = rank < this->rank();
  if (dialled_here && shared_ != nullptr && !peer.shared.empty() &&
      Listen(rank, peer.lane)) {
    end.shared = shared_->Attach(rank, peer.lane, peer.shared).ok();
  }
  WarmUp(rank, stream.lane());
}

// Probes look no names up: where the address of a peer has one, they go to the
// number that the connection with it has.
void PeerLinks::LocatePeer(const PeerStream& stream) {
  const int peer = stream.peer();
  const std::string number = NumericAddress(stream.remote());
  auto address = ParseAddress(config_.world.addresses[peer]);
  auto located = ParseAddress(number);
  if (!address.ok() || !located.ok() || IsNumeric(address->host)) return;
  // A caller's connection comes from another port than the one it serves.
  located->port = address->port;
  monitor_.SetProbeAddress(peer, FormatAddress(*located));
}

void PeerLinks::WarmUp(int peer, Lane lane) {
  PayloadLedger ledger;  // Of memory that never goes away.
  FrameHeader header = {.source = static_cast<uint32_t>(rank()),
                        .epoch = epoch(),
                        .op_descriptor = kWarmUpDescriptor};
  size_t left = config_.warm_up_bytes;
  while (left > 0) {
    const auto payload = absl::MakeConstSpan(kZeros).subspan(0, left);
    header.crc32c =
        FrameCrc(header, ExtendCrc32c(0, payload.data(), payload.size()),
                 payload.size());
    WriteFrame(peer, lane, header, payload, ledger);
    left -= payload.size();
  }
}

bool PeerLinks::AllOpen() const {
  for (const Peer& peer : peers_) {
    for (const End& end : peer.ends) {
      if (end.wanted && !end.open) return false;
    }
  }
  return true;
}

bool PeerLinks::AllReady() const {
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank() && !peers_[peer].ready) return false;
  }
  return true;
}

bool PeerLinks::LinksIdle() const {
  for (int peer = 0; peer < world_size(); ++peer) {
    for (int end = 0; end <= kControlEnd; ++end) {
      if (!WritesIdle(peer, end)) return false;
    }
  }
  return true;
}

std::string PeerLinks::MissingPeers() const {
  std::vector<std::string> closed;
  std::vector<std::string> unready;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank()) continue;
    const auto& ends = peers_[peer].ends;
    if (std::any_of(ends.begin(), ends.end(),
                    [](const End& end) { return end.wanted && !end.open; })) {
      closed.push_back(PeerName(peer));
    } else if (!peers_[peer].ready) {
      unready.push_back(PeerName(peer));
    }
  }
  if (!closed.empty()) {
    return absl::StrCat("no link with ", absl::StrJoin(closed, ", "));
  }
  return absl::StrCat(absl::StrJoin(unready, ", "),
                      " did not open all its links");
}

void PeerLinks::SendReady(Peer& peer) {
  v1::ControlMessage message = NewControl();
  message.mutable_ready();
  WriteControl(peer, message);
}

absl::Status PeerLinks::AwaitConnected(Deadline deadline) {
  const auto warm = [this] { return AllOpen() && LinksIdle(); };
  poller_->PollUntil([&] { return aborted() || warm(); }, deadline);
  if (!aborted() && warm()) {
    ready_ = true;
    ForEachPeer([this](int, Peer& peer) { SendReady(peer); });
    poller_->PollUntil(
        [this] { return aborted() || (AllOpen() && AllReady()); }, deadline);
  }
  if (!aborted() && AllOpen() && AllReady()) {
    connected_ = true;
    int lanes = 0;
    for (const Peer& peer : peers_) {
      for (int lane = 0; lane < kLanes; ++lane) {
        lanes += peer.ends[lane].wanted;
      }
    }
    if (shared_ != nullptr) shared_->set_exclusive(shared_lanes() == lanes);
    monitor_.Start(Deadline::Clock::now());
    return absl::OkStatus();
  }
  if (!aborted()) {
    AbortInRole(
        absl::DeadlineExceededError(absl::StrCat(
            "epoch ", epoch(), ": ", MissingPeers(), " before the deadline")),
        rank());
  }
  return Cause();
}

}  // namespace ringfleet::cluster
