// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/peer_opening.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/channel.h"
#include "cluster/rpc/host_address.h"
#include "cluster/wire/crc32c.h"

namespace ringfleet::cluster {
namespace {

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address) {
  grpc::ChannelArguments args = DirectArguments();
  // Retries keep what was sent until the peer answers.
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Flow-control windows grow only by this estimate.
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 1);
  // Pings are answered during long computations too, by the poller's background
  // thread.
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  return OpenChannel(address, args);
}

// The payload of warm-up frames.
constexpr char kZeros[size_t{256} << 10] = {};

constexpr absl::Duration kRedialDelay = absl::Milliseconds(100);

bool IsNumeric(const std::string& host) {
  in6_addr address;
  return inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

}  // namespace

PeerOpening::PeerOpening(std::shared_ptr<CompletionPoller> poller,
                         const LinkConfig& config, const EpochCause& cause,
                         PeerMonitor& monitor, PeerLanes& lanes,
                         PeerFailure& failure, PeerStream::Events* events)
    : poller_(std::move(poller)),
      config_(config),
      cause_(cause),
      monitor_(monitor),
      lanes_(lanes),
      failure_(failure),
      events_(events),
      peers_(config.world.addresses.size()) {}

void PeerOpening::Dial() {
  for (int peer = 0; peer < config_.rank(); ++peer) {
    for (int end = 0; end < PeerLanes::kEnds; ++end) {
      if (lanes_.wanted(peer, end)) DialOne(peer, end, /*share=*/true);
    }
  }
}

void PeerOpening::DialOne(int peer, int end, bool share) {
  StreamIdentity self = config_.self;
  const bool control = end == PeerLanes::kControlEnd;
  if (!control) self.lane = static_cast<Lane>(end);
  // A ring serves the first attempt only: afterwards something may be in it.
  if (share && !control) self.shared = lanes_.offer();
  peers_[peer].redial[end].reset();
  lanes_.SetStream(
      peer, end,
      ClientStream::Dial(
          poller_, control ? StreamKind::kControl : StreamKind::kLink,
          NewChannel(config_.world.addresses[peer]), self, peer, events_));
}

void PeerOpening::Admit(std::shared_ptr<ServerStream> stream,
                        const StreamIdentity& caller) {
  const int rank = config_.rank();
  const int peer = caller.source;
  if (cause_.aborted()) return stream->Refuse(cause_.status());
  if (peer <= rank || peer >= config_.world_size()) {
    return stream->Refuse(absl::InvalidArgumentError(
        absl::StrCat("rank ", peer, " calls rank ", rank, " of ",
                     config_.world_size(), "; only higher ranks do")));
  }
  stream->set_peer(peer, caller.lane);
  const int end = PeerLanes::EndIndex(*stream);
  absl::Status disagreement;
  if (caller.config != config_.self.config) {
    disagreement = absl::FailedPreconditionError(absl::StrCat(
        "ranks disagree in their configuration: rank ", peer, " has ",
        caller.config, ", rank ", rank, " has ", config_.self.config));
  } else if (!lanes_.wanted(peer, end)) {
    disagreement = absl::FailedPreconditionError(
        absl::StrCat("ranks disagree in their rings: rank ", peer,
                     " takes rank ", rank, " for a neighbour"));
  }
  if (!disagreement.ok()) {
    stream->Refuse(disagreement);
    // A stranger calls in the name of a rank that is here already.
    if (connected_ || lanes_.has_stream(peer, end)) return;
    return failure_.Abort(disagreement, peer);
  }
  if (lanes_.has_stream(peer, end)) {
    // While links open, a caller whose connection broke may be back before the
    // loss is seen here: it calls again, and finds out in time whether there
    // are two of it.
    const absl::StatusCode code = connected_
                                      ? absl::StatusCode::kFailedPrecondition
                                      : absl::StatusCode::kUnavailable;
    return stream->Refuse(absl::Status(
        code, absl::StrCat("rank ", peer, " already has this stream with rank ",
                           rank, " in epoch ", config_.self.epoch)));
  }
  lanes_.SetStream(peer, end, stream);
  stream->set_events(events_);
  StreamIdentity self = config_.self;
  self.lane = caller.lane;
  if (lanes_.Share(peer, caller.lane, caller.shared)) {
    self.shared = lanes_.offer();
  }
  stream->Accept(self);
}

void PeerOpening::OnOpen(const PeerStream& stream, const StreamIdentity& peer) {
  const int rank = stream.peer();
  const StreamIdentity& self = config_.self;
  if (peer.epoch != self.epoch || peer.source != rank ||
      peer.config != self.config || peer.lane != stream.lane()) {
    return failure_.Abort(
        absl::FailedPreconditionError(absl::StrCat(
            config_.PeerName(rank), " answers as rank ", peer.source,
            " of epoch ", peer.epoch, " with configuration ", peer.config,
            " on lane ", static_cast<int>(peer.lane), ", want rank ", rank,
            ", ", self.epoch, ", ", self.config, ", ",
            static_cast<int>(stream.lane()))),
        rank);
  }
  lanes_.SetOpen(stream);
  LocatePeer(stream);
  if (stream.kind() == StreamKind::kControl) {
    // The stream before, which carried the message, has broken.
    if (ready_) SendReady(rank);
    return;
  }
  const bool dialled_here = rank < config_.rank();
  if (dialled_here) lanes_.Share(rank, peer.lane, peer.shared);
  WarmUp(rank, stream.lane());
}

// Probes look no names up. Where the address of a peer has a name, they go to
// the number that the connection with the peer has.
void PeerOpening::LocatePeer(const PeerStream& stream) {
  const int peer = stream.peer();
  const std::string number = NumericAddress(stream.remote());
  auto address = ParseAddress(config_.world.addresses[peer]);
  auto located = ParseAddress(number);
  if (!address.ok() || !located.ok() || IsNumeric(address->host)) return;
  // A caller's connection comes from another port than the one it serves.
  located->port = address->port;
  monitor_.SetProbeAddress(peer, FormatAddress(*located));
}

void PeerOpening::WarmUp(int peer, Lane lane) {
  PayloadLedger ledger;  // The zeros never go away.
  FrameHeader header = {.source = static_cast<uint32_t>(config_.rank()),
                        .epoch = config_.self.epoch,
                        .op_descriptor = kWarmUpDescriptor};
  size_t left = config_.warm_up_bytes;
  while (left > 0) {
    const auto payload = absl::MakeConstSpan(kZeros).subspan(0, left);
    header.crc32c =
        FrameCrc(header, ExtendCrc32c(0, payload.data(), payload.size()),
                 payload.size());
    lanes_.Write(peer, lane, header, payload, ledger);
    left -= payload.size();
  }
}

void PeerOpening::OnStartFailed(const PeerStream& stream,
                                const absl::Status& status) {
  const int peer = stream.peer();
  const int end = PeerLanes::EndIndex(stream);
  lanes_.DropWrites(peer, end);
  const bool accepted_here = peer > config_.rank();
  if (accepted_here) {
    lanes_.SetStream(peer, end, nullptr);
  } else if (absl::IsUnavailable(status) || absl::IsCancelled(status)) {
    lanes_.SetStream(peer, end, nullptr);
    peers_[peer].redial[end] = Deadline::After(kRedialDelay);
  } else {
    failure_.Abort(Annotate(status, config_.PeerName(peer)), peer);
  }
}

void PeerOpening::Redial() {
  for (int peer = 0; peer < config_.rank(); ++peer) {
    for (int end = 0; end < PeerLanes::kEnds; ++end) {
      const std::optional<Deadline>& redial = peers_[peer].redial[end];
      if (redial.has_value() && redial->Expired()) {
        DialOne(peer, end, /*share=*/false);
      }
    }
  }
}

bool PeerOpening::AllReady() const {
  for (int peer = 0; peer < config_.world_size(); ++peer) {
    if (peer != config_.rank() && !peers_[peer].ready) return false;
  }
  return true;
}

std::string PeerOpening::MissingPeers() const {
  std::vector<std::string> closed;
  std::vector<std::string> unready;
  for (int peer = 0; peer < config_.world_size(); ++peer) {
    if (peer == config_.rank()) continue;
    if (!lanes_.AllOpen(peer)) {
      closed.push_back(config_.PeerName(peer));
    } else if (!peers_[peer].ready) {
      unready.push_back(config_.PeerName(peer));
    }
  }
  if (!closed.empty()) {
    return absl::StrCat("no link with ", absl::StrJoin(closed, ", "));
  }
  return absl::StrCat(absl::StrJoin(unready, ", "),
                      " did not open all its links");
}

void PeerOpening::SendReady(int peer) {
  v1::ControlMessage message;
  message.mutable_ready();
  lanes_.WriteControl(peer, std::move(message));
}

absl::Status PeerOpening::AwaitConnected(Deadline deadline) {
  const auto warm = [this] { return lanes_.AllOpen() && lanes_.AllIdle(); };
  poller_->PollUntil([&] { return cause_.aborted() || warm(); }, deadline);
  if (!cause_.aborted() && warm()) {
    ready_ = true;
    for (int peer = 0; peer < config_.world_size(); ++peer) {
      if (peer != config_.rank()) SendReady(peer);
    }
    poller_->PollUntil(
        [this] { return cause_.aborted() || (lanes_.AllOpen() && AllReady()); },
        deadline);
  }
  if (!cause_.aborted() && lanes_.AllOpen() && AllReady()) {
    connected_ = true;
    lanes_.SettleShared();
    monitor_.Start(Deadline::Clock::now());
    return absl::OkStatus();
  }
  if (!cause_.aborted()) {
    failure_.Abort(absl::DeadlineExceededError(
                       absl::StrCat("epoch ", config_.self.epoch, ": ",
                                    MissingPeers(), " before the deadline")),
                   config_.rank());
  }
  return cause_.status();
}

}  // namespace ringfleet::cluster
