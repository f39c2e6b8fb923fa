// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/peer_stream.h"

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {
namespace {

constexpr char kEpochHeader[] = "rf-epoch";
constexpr char kSourceHeader[] = "rf-source";
constexpr char kConfigHeader[] = "rf-config";
constexpr char kLaneHeader[] = "rf-lane";
constexpr char kSharedHeader[] = "rf-shm";

// The most completions that a small message runs to leave. Most are its own,
// and a peer that floods this rank does not hold it up.
constexpr int kMostCompletions = 64;

using Headers = std::multimap<grpc::string_ref, grpc::string_ref>;

template <typename Number>
absl::Status ReadHeader(const Headers& headers, const char* name,
                        Number* value) {
  const auto found = headers.find(name);
  if (found == headers.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header ", name, " is missing"));
  }
  const absl::string_view text(found->second.data(), found->second.size());
  if (!absl::SimpleAtoi(text, value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header ", name, " is '", text, "', want a number"));
  }
  return absl::OkStatus();
}

absl::StatusOr<StreamIdentity> ReadIdentity(StreamKind kind,
                                            const Headers& headers) {
  StreamIdentity identity;
  for (const absl::Status& status :
       {ReadHeader(headers, kEpochHeader, &identity.epoch),
        ReadHeader(headers, kSourceHeader, &identity.source),
        ReadHeader(headers, kConfigHeader, &identity.config)}) {
    if (!status.ok()) return status;
  }
  if (kind == StreamKind::kLink) {
    int lane = 0;
    RF_RETURN_IF_ERROR(ReadHeader(headers, kLaneHeader, &lane));
    if (lane < 0 || lane >= kLanes) {
      return absl::InvalidArgumentError(
          absl::StrCat("the header ", kLaneHeader, " is ", lane, ", want 0 to ",
                       kLanes - 1));
    }
    identity.lane = static_cast<Lane>(lane);
    const auto shared = headers.find(kSharedHeader);
    if (shared != headers.end()) {
      identity.shared.assign(shared->second.data(), shared->second.size());
    }
  }
  return identity;
}

// add(name, value) for every header.
template <typename Add>
void WriteIdentity(StreamKind kind, const StreamIdentity& self, Add&& add) {
  add(kEpochHeader, std::to_string(self.epoch));
  add(kSourceHeader, std::to_string(self.source));
  add(kConfigHeader, std::to_string(self.config));
  if (kind == StreamKind::kLink) {
    add(kLaneHeader, std::to_string(static_cast<int>(self.lane)));
    if (!self.shared.empty()) add(kSharedHeader, self.shared);
  }
}

const char* MethodName(StreamKind kind) {
  return kind == StreamKind::kLink ? "/ringfleet.v1.Collective/Link"
                                   : "/ringfleet.v1.Collective/Control";
}

}  // namespace

void PeerStream::Read() {
  if (!can_start() || lost_) return;
  reader_->Read(&read_buffer_, read_op_.Start(this));
}

void PeerStream::ReadSoon() {
  if (!can_start() || lost_ || read_owed_) return;
  read_owed_ = true;
  poller_->Defer({shared_from_this(), this});
}

void PeerStream::RunDeferred() {
  read_owed_ = false;
  Read();
}

void PeerStream::PostOwedRead() {
  poller_->Withdraw(this);
  RunDeferred();
}

void PeerStream::WriteSmall(grpc::ByteBuffer&& message,
                            absl::FunctionRef<bool()> left) {
  if (!read_owed_ || !writes_idle()) return Write(std::move(message));
  if (!can_start() || lost_ || ending_) return;
  const std::shared_ptr<PeerStream> self = shared_from_this();
  write_pending_ = true;
  writer_->Write(Message(std::move(message)).bytes,
                 grpc::WriteOptions().set_buffer_hint(), write_op_.Start(this));
  PostOwedRead();
  // A read that finds a message makes no room known, and sends nothing; the
  // one behind it does.
  for (int i = 0; i < kMostCompletions && !left(); ++i) {
    if (!poller_->RunReady()) break;
    if (read_owed_) PostOwedRead();
  }
  if (left()) return;
  const grpc::Slice nothing;  // A message moves what is held before it.
  Write(grpc::ByteBuffer(&nothing, 1));
}

void PeerStream::Write(grpc::ByteBuffer&& message) {
  if (!can_start() || lost_ || ending_) return;
  writes_.push_back(Message(std::move(message)));
  if (!write_pending_) StartNextWrite();
}

void PeerStream::StartNextWrite() {
  write_pending_ = true;
  writer_->Write(writes_.pop_front().bytes, write_op_.Start(this));
}

void PeerStream::EndWrites() {
  if (!can_start() || lost_ || std::exchange(ending_, true)) return;
  if (writes_idle()) SendEnd();
}

void PeerStream::Cancel() {
  writes_.clear();
  CancelCall();
}

void PeerStream::OnRead(bool ok) {
  if (!ok) {
    lost_ = true;
    writes_.clear();
    Lose();
    return;
  }
  grpc::ByteBuffer message;
  message.Swap(&read_buffer_);
  if (events_ != nullptr) events_->OnMessage(*this, message);
}

void PeerStream::OnWrite(bool ok) {
  write_pending_ = false;
  if (!ok) {
    lost_ = true;
    writes_.clear();
    Lose();
  } else if (can_start()) {
    if (!writes_.empty()) {
      StartNextWrite();
    } else if (ending_ && !lost_) {
      SendEnd();
    }
  }
}

void PeerStream::ReportOpen(const StreamIdentity& peer) {
  if (events_ != nullptr) events_->OnOpen(*this, peer);
}

void PeerStream::ReportClosed(const absl::Status& status) {
  lost_ = true;
  if (Events* events = std::exchange(events_, nullptr)) {
    events->OnClosed(*this, status);
  }
}

ClientStream::ClientStream(std::shared_ptr<CompletionPoller> poller,
                           StreamKind kind,
                           std::shared_ptr<grpc::Channel> channel)
    : PeerStream(std::move(poller), kind),
      channel_(std::move(channel)),
      stub_(channel_),
      start_op_(static_cast<Op::Handler>(&ClientStream::OnStarted)),
      headers_op_(static_cast<Op::Handler>(&ClientStream::OnHeaders)),
      end_op_(static_cast<Op::Handler>(&ClientStream::OnEndSent)),
      finish_op_(static_cast<Op::Handler>(&ClientStream::OnFinished)) {}

std::shared_ptr<ClientStream> ClientStream::Dial(
    std::shared_ptr<CompletionPoller> poller, StreamKind kind,
    std::shared_ptr<grpc::Channel> channel, const StreamIdentity& self,
    int peer, Events* events) {
  std::shared_ptr<ClientStream> stream(
      new ClientStream(std::move(poller), kind, std::move(channel)));
  stream->set_peer(peer, self.lane);
  stream->set_events(events);
  grpc::ClientContext& context = stream->context_;
  WriteIdentity(kind, self, [&](const char* name, const std::string& value) {
    context.AddMetadata(name, value);
  });
  context.set_wait_for_ready(true);
  stream->call_ = stream->stub_.PrepareCall(&context, MethodName(kind),
                                            stream->poller_->queue());
  stream->reader_ = stream->call_.get();
  stream->writer_ = stream->call_.get();
  stream->call_->StartCall(stream->start_op_.Start(stream.get()));
  return stream;
}

void ClientStream::OnStarted(bool ok) {
  if (!can_start()) return;
  if (!ok) return Lose();
  call_->ReadInitialMetadata(headers_op_.Start(this));
}

void ClientStream::OnHeaders(bool ok) {
  if (!can_start()) return;
  // A refusal has no headers but a status, which Finish reads.
  const absl::StatusOr<StreamIdentity> peer =
      ReadIdentity(kind_, context_.GetServerInitialMetadata());
  if (!ok || !peer.ok()) return Lose();
  Read();
  ReportOpen(*peer);
}

void ClientStream::SendEnd() { call_->WritesDone(end_op_.Start(this)); }

void ClientStream::Lose() {
  if (finishing_ || !can_start()) return;
  finishing_ = true;
  call_->Finish(&status_, finish_op_.Start(this));
}

void ClientStream::OnFinished(bool ok) {
  ReportClosed(status_.ok()
                   ? absl::UnavailableError("the peer ended the stream")
                   : FromGrpc(status_));
}

ServerStream::ServerStream(std::shared_ptr<CompletionPoller> poller,
                           StreamKind kind, void* acceptor,
                           OnArrival on_arrival)
    : PeerStream(std::move(poller), kind),
      acceptor_(acceptor),
      on_arrival_(on_arrival),
      arrival_op_(static_cast<Op::Handler>(&ServerStream::OnArrived)),
      headers_op_(static_cast<Op::Handler>(&ServerStream::OnHeadersSent)),
      finish_op_(static_cast<Op::Handler>(&ServerStream::OnFinished)),
      done_op_(static_cast<Op::Handler>(&ServerStream::OnDone)) {
  reader_ = &call_;
  writer_ = &call_;
}

void ServerStream::Expect(std::shared_ptr<CompletionPoller> poller,
                          StreamKind kind, RawCollectiveService* service,
                          void* acceptor, OnArrival on_arrival) {
  grpc::ServerCompletionQueue* const queue = poller->queue();
  std::shared_ptr<ServerStream> stream(
      new ServerStream(std::move(poller), kind, acceptor, on_arrival));
  // Delivered only after a call has arrived, so it holds the stream from then.
  stream->context_.AsyncNotifyWhenDone(
      static_cast<Completion*>(&stream->done_op_));
  void* const tag = stream->arrival_op_.Start(stream.get());
  if (kind == StreamKind::kLink) {
    service->RequestLink(&stream->context_, &stream->call_, queue, queue, tag);
  } else {
    service->RequestControl(&stream->context_, &stream->call_, queue, queue,
                            tag);
  }
}

absl::StatusOr<StreamIdentity> ServerStream::Identity() const {
  return ReadIdentity(kind_, context_.client_metadata());
}

void ServerStream::OnArrived(bool ok) {
  if (!ok) return;  // The server shuts down.
  done_op_.Start(this);
  on_arrival_(acceptor_,
              std::static_pointer_cast<ServerStream>(shared_from_this()));
}

void ServerStream::Accept(const StreamIdentity& self) {
  if (!can_start()) return;
  WriteIdentity(kind_, self, [&](const char* name, const std::string& value) {
    context_.AddInitialMetadata(name, value);
  });
  call_.SendInitialMetadata(headers_op_.Start(this));
}

void ServerStream::OnHeadersSent(bool ok) {
  if (!ok) return Lose();
  Read();
  const absl::StatusOr<StreamIdentity> caller = Identity();
  if (caller.ok()) ReportOpen(*caller);
}

void ServerStream::Refuse(const absl::Status& status) {
  if (!can_start() || ended_) return;
  Finish(status);
}

void ServerStream::Finish(const absl::Status& status) {
  if (std::exchange(finished_, true)) return;
  call_.Finish(ToGrpc(status), finish_op_.Start(this));
}

void ServerStream::Lose() {
  ReportClosed(absl::UnavailableError("the peer ended the stream"));
  // A caller that sends nothing more learns that all of it was read.
  if (ended_ || !can_start()) return;
  if (writes_idle()) {
    Finish(absl::OkStatus());
  } else {
    CancelCall();
  }
}

void ServerStream::OnDone(bool ok) {
  ended_ = true;
  Lose();
}

}  // namespace ringfleet::cluster
