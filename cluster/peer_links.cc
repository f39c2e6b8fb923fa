// SPDX-License-Identifier: Apache-2.0
#include "cluster/peer_links.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/log.h"
#include "cluster/status_macros.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

// Below this a copy into the header's slice is cheaper than a slice of its
// own, and nobody has to wait for its release.
constexpr size_t kCopyBytes = 4096;
// What a queued frame costs beside its payload, so that a flood of empty
// frames is bounded too.
constexpr size_t kFrameOverheadBytes = 512;
// A failing rank cancels its Link stream after it has written the cause on
// Control: another connection, which may be slower.
constexpr absl::Duration kVerdictDelay = absl::Milliseconds(200);
constexpr absl::Duration kRedialDelay = absl::Milliseconds(100);
// Closing waits this long for the last control messages and for memory. What
// a peer that stopped reading still holds by then is given up.
constexpr absl::Duration kFarewellTime = absl::Milliseconds(200);
constexpr absl::Duration kReleaseTime = absl::Seconds(1);
// Releases are no completions: looked for this often while blocked.
constexpr absl::Duration kReleaseSlice = absl::Milliseconds(1);

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address) {
  grpc::ChannelArguments args;
  // Its own connection: equal channels would share one, and a control message
  // would wait behind megabytes of frames.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Retries keep what was sent until the peer answers.
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Flow-control windows grow only by this estimate.
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 1);
  // A host that vanishes is noticed after 20 s; pings are answered during long
  // computations too, by the poller's background thread.
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Ranks start at about the same time; find each other quickly.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   args);
}

struct MessagePieces {
  std::vector<grpc::Slice> slices;
  std::vector<absl::Span<const char>> spans;
};

std::shared_ptr<MessagePieces> PiecesOf(const grpc::ByteBuffer& message) {
  auto pieces = std::make_shared<MessagePieces>();
  // An empty message has no slices, and Dump may then fail.
  if (!message.Dump(&pieces->slices).ok()) pieces->slices.clear();
  pieces->spans.reserve(pieces->slices.size());
  for (const grpc::Slice& slice : pieces->slices) {
    pieces->spans.push_back(
        {reinterpret_cast<const char*>(slice.begin()), slice.size()});
  }
  return pieces;
}

absl::StatusCode CodeFromWire(uint32_t code) {
  return code >= 1 && code <= 16 ? static_cast<absl::StatusCode>(code)
                                 : absl::StatusCode::kAborted;
}

}  // namespace

void PeerLinks::PayloadLedger::Release(void* ledger) {
  auto* self = static_cast<PayloadLedger*>(ledger);
  if (self->references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    delete self;
  }
}

PeerLinks::PeerLinks(std::shared_ptr<CompletionPoller> poller, Config config,
                     std::function<void()> on_end)
    : poller_(std::move(poller)),
      config_(std::move(config)),
      ledger_(new PayloadLedger),
      on_end_(std::move(on_end)),
      peers_(config_.addresses.size()) {}

PeerLinks::~PeerLinks() {
  {
    CompletionPoller::Role role(poller_.get());
    Close(absl::CancelledError(
        absl::StrCat("epoch ", epoch(), " has ended on this rank")));
  }
  PayloadLedger::Release(ledger_);
}

void PeerLinks::ForEachPeer(absl::FunctionRef<void(int, Peer&)> visit) {
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank()) visit(peer, peers_[peer]);
  }
}

std::string PeerLinks::PeerName(int peer) const {
  return absl::StrCat("rank ", peer, " (", config_.addresses[peer], ")");
}

// --- Opening ---------------------------------------------------------------

void PeerLinks::Dial() {
  for (int peer = 0; peer < rank(); ++peer) {
    DialOne(peer, StreamKind::kLink);
    DialOne(peer, StreamKind::kControl);
  }
}

void PeerLinks::DialOne(int peer, StreamKind kind) {
  End& end = EndOf(peers_[peer], kind);
  end = End{};
  end.stream =
      ClientStream::Dial(poller_, kind, NewChannel(config_.addresses[peer]),
                         config_.self, peer, this);
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
  if (caller.config != config_.self.config) {
    const absl::Status status = absl::FailedPreconditionError(absl::StrCat(
        "ranks disagree in their configuration: rank ", peer, " has ",
        caller.config, ", rank ", rank(), " has ", config_.self.config));
    stream->Refuse(status);
    return AbortInRole(status, peer);
  }
  End& end = EndOf(peers_[peer], stream->kind());
  if (end.stream != nullptr) {
    return stream->Refuse(absl::FailedPreconditionError(
        absl::StrCat("rank ", peer, " already has this stream with rank ",
                     rank(), " in epoch ", epoch())));
  }
  end = End{.stream = stream};
  stream->set_peer(peer);
  stream->set_events(this);
  stream->Accept(config_.self);
}

void PeerLinks::OnOpen(PeerStream& stream, const StreamIdentity& peer) {
  const StreamIdentity want{epoch(), stream.peer(), config_.self.config};
  if (peer.epoch != want.epoch || peer.source != want.source ||
      peer.config != want.config) {
    return AbortInRole(
        absl::FailedPreconditionError(absl::StrCat(
            PeerName(stream.peer()), " answers as rank ", peer.source,
            " of epoch ", peer.epoch, " with configuration ", peer.config,
            ", want rank ", want.source, ", ", want.epoch, ", ", want.config)),
        stream.peer());
  }
  EndOf(peers_[stream.peer()], stream.kind()).open = true;
}

bool PeerLinks::AllOpen() const {
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank()) continue;
    if (!peers_[peer].link.open || !peers_[peer].control.open) return false;
  }
  return true;
}

bool PeerLinks::AllReady() const {
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank() && !peers_[peer].ready) return false;
  }
  return true;
}

std::string PeerLinks::MissingPeers() const {
  std::vector<std::string> closed;
  std::vector<std::string> unready;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank()) continue;
    if (!peers_[peer].link.open || !peers_[peer].control.open) {
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

absl::Status PeerLinks::AwaitConnected(Deadline deadline) {
  poller_->PollUntil([this] { return aborted() || AllOpen(); }, deadline);
  if (!aborted() && AllOpen()) {
    v1::ControlMessage message = NewControl();
    message.mutable_ready();
    ForEachPeer([&](int, Peer& peer) { WriteControl(peer, message); });
    poller_->PollUntil(
        [this] { return aborted() || (AllOpen() && AllReady()); }, deadline);
  }
  if (!aborted() && AllOpen() && AllReady()) {
    connected_ = true;
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

// --- Moving frames ---------------------------------------------------------

absl::Status PeerLinks::Send(int peer, const FrameHeader& header,
                             absl::Span<const char> payload) {
  RF_CHECK(peer >= 0 && peer < world_size() && peer != rank());
  const bool copy = payload.size() < kCopyBytes;
  grpc::Slice slices[2] = {
      grpc::Slice(kFrameHeaderBytes + (copy ? payload.size() : 0)), {}};
  char* const out =
      reinterpret_cast<char*>(const_cast<uint8_t*>(slices[0].begin()));
  EncodeFrameHeader(header, payload.size(), out);
  if (!copy) {
    ledger_->references.fetch_add(1, std::memory_order_relaxed);
    slices[1] = grpc::Slice(const_cast<char*>(payload.data()), payload.size(),
                            &PayloadLedger::Release, ledger_);
  } else if (!payload.empty()) {
    std::copy(payload.begin(), payload.end(), out + kFrameHeaderBytes);
  }
  grpc::ByteBuffer message(slices, copy ? 1 : 2);

  CompletionPoller::Role role(poller_.get());
  if (aborted()) return Cause();
  End& link = peers_[peer].link;
  if (!link.open) {
    return absl::UnavailableError(
        absl::StrCat("no link with ", PeerName(peer)));
  }
  link.stream->Write(std::move(message));
  return absl::OkStatus();
}

absl::StatusOr<ReceivedFrame> PeerLinks::Receive(int rank, Deadline deadline) {
  RF_CHECK(rank >= 0 && rank < world_size() && rank != this->rank());
  ReceivedFrame frame;
  {
    CompletionPoller::Role role(poller_.get());
    Peer& peer = peers_[rank];
    poller_->PollUntil(
        [&] { return aborted() || !peer.frames.empty() || peer.link.lost; },
        deadline);
    if (aborted()) return Cause();
    if (peer.frames.empty() && peer.link.lost && peer.left) {
      return absl::UnavailableError(
          absl::StrCat(PeerName(rank), " has left epoch ", epoch()));
    }
    if (peer.frames.empty() && peer.link.lost) {
      // Its last words may still be under way; Housekeeping gives them time.
      poller_->PollUntil([&] { return aborted(); }, deadline);
      if (aborted()) return Cause();
    }
    if (peer.frames.empty()) {
      return absl::DeadlineExceededError(
          absl::StrCat("no frame from ", PeerName(rank)));
    }
    frame = std::move(peer.frames.front());
    peer.frames.pop_front();
    peer.queued_bytes -= frame.payload_bytes + kFrameOverheadBytes;
    if (peer.read_due && peer.queued_bytes < config_.max_queued_bytes) {
      peer.read_due = false;
      peer.link.stream->Read();
    }
  }
  RF_RETURN_IF_ERROR(CheckCrc(frame, rank));
  return frame;
}

bool PeerLinks::Released() const {
  return ledger_->references.load(std::memory_order_acquire) == 1;
}

bool PeerLinks::AwaitPayload(Deadline deadline) {
  return Released() || poller_->PollUntil([this] { return Released(); },
                                          deadline, kReleaseSlice);
}

absl::Status PeerLinks::Flush(Deadline deadline) {
  CompletionPoller::Role role(poller_.get());
  const bool was_aborted = aborted();
  poller_->PollUntil([&] { return Released() || (!was_aborted && aborted()); },
                     deadline, kReleaseSlice);
  if (aborted()) return Cause();
  if (Released()) return absl::OkStatus();
  return absl::DeadlineExceededError("a peer does not read what was sent");
}

void PeerLinks::OnMessage(PeerStream& stream, grpc::ByteBuffer message) {
  if (stream.kind() == StreamKind::kControl) {
    OnControl(stream, message);
    stream.Read();
    return;
  }
  OnFrame(stream, message);
  Peer& peer = peers_[stream.peer()];
  peer.read_due = peer.queued_bytes >= config_.max_queued_bytes;
  if (!peer.read_due) stream.Read();
}

void PeerLinks::OnFrame(PeerStream& stream, const grpc::ByteBuffer& message) {
  const std::shared_ptr<MessagePieces> pieces = PiecesOf(message);
  absl::StatusOr<ReceivedFrame> frame = ParseFrame(pieces->spans, pieces);
  if (!frame.ok()) {
    return AbortInRole(Annotate(frame.status(), PeerName(stream.peer())),
                       stream.peer());
  }
  if (frame->header.epoch != epoch()) {
    dropped_frames_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (frame->header.source != static_cast<uint32_t>(stream.peer())) {
    return AbortInRole(absl::DataLossError(absl::StrCat(
                           PeerName(stream.peer()), " sends a frame of rank ",
                           frame->header.source)),
                       stream.peer());
  }
  if (aborted()) return;
  Peer& peer = peers_[stream.peer()];
  peer.queued_bytes += frame->payload_bytes + kFrameOverheadBytes;
  peer.frames.push_back(*std::move(frame));
}

// --- Control and failure ---------------------------------------------------

v1::ControlMessage PeerLinks::NewControl() const {
  v1::ControlMessage message;
  message.set_epoch(epoch());
  message.set_source(static_cast<uint32_t>(rank()));
  return message;
}

void PeerLinks::WriteControl(Peer& peer, const v1::ControlMessage& message) {
  if (!peer.control.open || peer.control.lost) return;
  const std::string bytes = message.SerializeAsString();
  const grpc::Slice slice(bytes);
  peer.control.stream->Write(grpc::ByteBuffer(&slice, 1));
}

void PeerLinks::OnControl(PeerStream& stream, const grpc::ByteBuffer& message) {
  const int rank = stream.peer();
  const std::shared_ptr<MessagePieces> pieces = PiecesOf(message);
  std::string bytes;
  for (const auto piece : pieces->spans) {
    bytes.append(piece.data(), piece.size());
  }
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
      break;
    case v1::ControlMessage::kAbort: {
      const auto& abort = control.abort();
      const absl::Status cause(CodeFromWire(abort.code()), abort.message());
      if (Record(cause, abort.message(), static_cast<int>(abort.suspect()))) {
        SpreadAbort();
      }
      break;
    }
    case v1::ControlMessage::BODY_NOT_SET:
      break;
  }
}

void PeerLinks::OnClosed(PeerStream& stream, const absl::Status& status) {
  const int rank = stream.peer();
  Peer& peer = peers_[rank];
  End& end = EndOf(peer, stream.kind());
  if (end.stream.get() != &stream) return;
  if (aborted() || closed_) {
    end.lost = true;
    return;
  }
  if (!connected_ && !peer.ready) {
    // It is only starting, or starting again: be patient until the deadline.
    const bool accepted_here = rank > this->rank();
    if (accepted_here) {
      end = End{};
    } else if (absl::IsUnavailable(status) || absl::IsCancelled(status)) {
      end = End{.redial = Deadline::After(kRedialDelay)};
    } else {
      AbortInRole(Annotate(status, PeerName(rank)), rank);
    }
    return;
  }
  end.lost = true;
  if (peer.left) return;
  absl::StrAppend(&peer.loss, peer.loss.empty() ? "" : "; ",
                  stream.kind() == StreamKind::kLink ? "link: " : "control: ",
                  status.message());
  if (peer.link.lost && peer.control.lost) {
    AbortInRole(absl::UnavailableError(
                    absl::StrCat("lost ", PeerName(rank), ": ", peer.loss)),
                rank);
  } else {
    peer.verdict = Deadline::After(kVerdictDelay);
  }
}

void PeerLinks::Housekeeping() {
  if (aborted() || closed_) return;
  ForEachPeer([this](int rank, Peer& peer) {
    for (const StreamKind kind : {StreamKind::kLink, StreamKind::kControl}) {
      const End& end = EndOf(peer, kind);
      if (end.redial.has_value() && end.redial->Expired()) DialOne(rank, kind);
    }
    if (peer.verdict.has_value() && peer.verdict->Expired() && !peer.left) {
      AbortInRole(absl::UnavailableError(
                      absl::StrCat("lost ", PeerName(rank), ": ", peer.loss)),
                  rank);
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
  Record(cause, absl::StrCat("rank ", rank(), ": ", cause.message()), rank());
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
    RF_LOG(kWarning, "epoch ", epoch(), " aborted: ", cause_.ToString());
    message.mutable_abort()->set_code(static_cast<uint32_t>(cause_.code()));
    message.mutable_abort()->set_message(origin_);
    message.mutable_abort()->set_suspect(static_cast<uint32_t>(suspect_));
  }
  ForEachPeer([&](int, Peer& peer) {
    WriteControl(peer, message);
    peer.frames.clear();
    peer.queued_bytes = 0;
    if (peer.link.stream != nullptr) peer.link.stream->Cancel();
  });
}

void PeerLinks::Close(const absl::Status& reason) {
  if (closed_) return;
  if (on_end_) on_end_();
  if (aborted()) {
    SpreadAbort();
  } else {
    v1::ControlMessage message = NewControl();
    message.mutable_leave();
    ForEachPeer([&](int, Peer& peer) { WriteControl(peer, message); });
  }
  Record(reason, std::string(reason.message()), rank());
  closed_ = true;
  if (poller_->closed()) return;
  poller_->PollUntil(
      [this] {
        bool idle = true;
        ForEachPeer([&](int, Peer& peer) {
          idle &= peer.control.lost || peer.control.stream == nullptr ||
                  peer.control.stream->writes_idle();
        });
        return idle;
      },
      Deadline::After(kFarewellTime));
  ForEachPeer([](int, Peer& peer) {
    for (End* end : {&peer.link, &peer.control}) {
      if (end->stream == nullptr) continue;
      end->stream->set_events(nullptr);
      end->stream->Cancel();
      end->stream.reset();
    }
    peer.frames.clear();
  });
  if (!AwaitPayload(Deadline::After(kReleaseTime))) {
    RF_LOG(kError, "epoch ", epoch(),
           ": a peer that does not read still holds payload memory");
  }
}

}  // namespace ringfleet::cluster
