// SPDX-License-Identifier: Apache-2.0
// One end of a bidirectional gRPC stream of raw messages with a peer. The owner
// must request each read. One write at a time is under way; others wait in a
// queue.
//
// When a read is posted, gRPC sends the peer a packet that announces new room.
// In small collectives, each message would cost such a second packet before the
// message is used. Therefore the read behind a small message (ReadSoon) waits
// for the next message that leaves. gRPC is told to hold the leaving message
// (GRPC_WRITE_BUFFER_HINT). Posting the read then sends the message and the
// announcement in one packet.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_PEER_STREAM_H_
#define RINGFLEET_CLUSTER_TRANSPORT_PEER_STREAM_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/transport/completion_poller.h"
#include "cluster/transport/frame_queue.h"
#include "cluster/transport/transport.h"
#include "protos/collective.grpc.pb.h"

namespace ringfleet::cluster {

// The identity of the rank at one end of a stream. It travels in the headers
// rf-epoch, rf-source and rf-config. A Link also has rf-lane and rf-shm.
struct StreamIdentity {
  uint64_t epoch = 0;
  int source = 0;
  uint64_t config = 0;
  Lane lane = Lane::kDirect;
  std::string shared = {};  // SharedSegment's offer; empty: none.
};

enum class StreamKind : uint8_t { kLink, kControl };

// Every member function requires the poller's role. A running operation keeps
// the stream alive, so the owner may drop it at any time.
class PeerStream : public std::enable_shared_from_this<PeerStream>,
                   private CompletionPoller::Deferred {
 public:
  // Functions run in the role. No event follows OnClosed.
  class Events {
   public:
    virtual void OnOpen(PeerStream& stream, const StreamIdentity& peer) = 0;
    virtual void OnMessage(PeerStream& stream,
                           const grpc::ByteBuffer& message) = 0;
    virtual void OnClosed(PeerStream& stream, const absl::Status& status) = 0;

   protected:
    ~Events() = default;
  };

  virtual ~PeerStream() = default;
  PeerStream(const PeerStream&) = delete;
  PeerStream& operator=(const PeerStream&) = delete;

  StreamKind kind() const { return kind_; }
  // Null: events are dropped.
  void set_events(Events* events) { events_ = events; }
  // Labels for the receiver of the events: the rank at the other end, and a
  // Link's lane.
  int peer() const { return peer_; }
  Lane lane() const { return lane_; }
  void set_peer(int peer, Lane lane) {
    peer_ = peer;
    lane_ = lane;
  }

  // Posts a read. OnMessage reports the message.
  void Read();
  // Posts a read with the next WriteSmall, or when the poller finds the queue
  // empty.
  void ReadSoon();
  // Queues `message`.
  void Write(grpc::ByteBuffer&& message);
  // Queues a small `message` and posts the read of an earlier ReadSoon with it.
  // `left` must return true once gRPC has sent the message. May run
  // completions.
  void WriteSmall(grpc::ByteBuffer&& message, absl::FunctionRef<bool()> left);
  // Ends the stream after all written messages; none is lost. Later writes do
  // nothing. A ClientStream reports OnClosed when the peer has read all
  // messages, a ServerStream when gRPC has sent all messages.
  void EndWrites();
  // Returns the peer's address as gRPC writes it: "ipv4:127.0.0.1:50052".
  virtual std::string remote() const = 0;
  bool writes_idle() const { return !write_pending_ && writes_.empty(); }
  // Returns the number of messages that gRPC has not sent yet.
  size_t unsent() const { return writes_.size() + (write_pending_ ? 1 : 0); }
  // Drops queued writes and ends the stream with an error. Messages that were
  // sent may be lost.
  void Cancel();

 protected:
  PeerStream(std::shared_ptr<CompletionPoller> poller, StreamKind kind)
      : poller_(std::move(poller)), kind_(kind) {}

  // A tag of one operation. Keeps its stream alive while the operation runs.
  class Op : public Completion {
   public:
    using Handler = void (PeerStream::*)(bool ok);
    explicit Op(Handler handler) : handler_(handler) {}
    void* Start(PeerStream* stream) {
      stream_ = stream->shared_from_this();
      return static_cast<Completion*>(this);
    }
    void OnComplete(bool ok) override {
      const std::shared_ptr<PeerStream> stream = std::move(stream_);
      ((*stream).*handler_)(ok);
    }

   private:
    const Handler handler_;
    std::shared_ptr<PeerStream> stream_;
  };

  bool can_start() const { return !poller_->closed(); }
  void ReportOpen(const StreamIdentity& peer);
  void ReportClosed(const absl::Status& status);
  // Finds out why a read or a write has failed, and reports OnClosed.
  virtual void Lose() = 0;
  virtual void CancelCall() = 0;
  // Sends the end of the stream. Requires writes_idle().
  virtual void SendEnd() = 0;

  const std::shared_ptr<CompletionPoller> poller_;
  const StreamKind kind_;
  grpc::internal::AsyncReaderInterface<grpc::ByteBuffer>* reader_ = nullptr;
  grpc::internal::AsyncWriterInterface<grpc::ByteBuffer>* writer_ = nullptr;

 private:
  void OnRead(bool ok);
  void OnWrite(bool ok);
  void StartNextWrite();
  void PostOwedRead();
  void RunDeferred() override;

  // A movable ByteBuffer. Moving a grpc::ByteBuffer copies it, and the copy
  // keeps references to the slices.
  struct Message {
    Message() = default;
    explicit Message(grpc::ByteBuffer&& from) { bytes.Swap(&from); }
    Message(Message&& other) noexcept { bytes.Swap(&other.bytes); }
    Message& operator=(Message&& other) noexcept {
      bytes.Clear();
      bytes.Swap(&other.bytes);
      return *this;
    }

    grpc::ByteBuffer bytes;
  };

  Events* events_ = nullptr;
  int peer_ = -1;
  Lane lane_ = Lane::kDirect;
  bool lost_ = false;
  bool write_pending_ = false;
  bool ending_ = false;     // EndWrites was called.
  bool read_owed_ = false;  // True after ReadSoon.
  FrameQueue<Message> writes_;
  grpc::ByteBuffer read_buffer_;
  Op read_op_{&PeerStream::OnRead};
  Op write_op_{&PeerStream::OnWrite};
};

// The end of the stream at the rank that dials.
class ClientStream : public PeerStream {
 public:
  // Opens a stream on `channel`. gRPC waits until the peer's server is
  // reachable.
  static std::shared_ptr<ClientStream> Dial(
      std::shared_ptr<CompletionPoller> poller, StreamKind kind,
      std::shared_ptr<grpc::Channel> channel, const StreamIdentity& self,
      int peer, Events* events);

 private:
  ClientStream(std::shared_ptr<CompletionPoller> poller, StreamKind kind,
               std::shared_ptr<grpc::Channel> channel);
  void OnStarted(bool ok);
  void OnHeaders(bool ok);
  void OnFinished(bool ok);
  void OnEndSent(bool ok) {}
  void Lose() override;
  void CancelCall() override { context_.TryCancel(); }
  void SendEnd() override;
  std::string remote() const override { return context_.peer(); }

  const std::shared_ptr<grpc::Channel> channel_;
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<
      grpc::ClientAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>>
      call_;
  grpc::Status status_;
  bool finishing_ = false;
  Op start_op_;
  Op headers_op_;
  Op end_op_;
  Op finish_op_;
};

// The Collective service with messages as bytes.
using RawCollectiveService = v1::Collective::WithRawMethod_Link<
    v1::Collective::WithRawMethod_Control<v1::Collective::Service>>;

// The end of the stream at the rank that is dialled.
class ServerStream : public PeerStream {
 public:
  // Runs in the role when a call has arrived. The acceptor must call Accept or
  // Refuse, at once or later. If the call ends earlier, the stream reports
  // OnClosed.
  using OnArrival = void (*)(void* acceptor,
                             std::shared_ptr<ServerStream> stream);

  // Begins to wait for one call of the method of `kind`. `on_arrival` does not
  // run if the server shuts down first.
  static void Expect(std::shared_ptr<CompletionPoller> poller, StreamKind kind,
                     RawCollectiveService* service, void* acceptor,
                     OnArrival on_arrival);

  // Returns the identity in the caller's headers, or INVALID_ARGUMENT.
  absl::StatusOr<StreamIdentity> Identity() const;
  // Sends `self` to the caller, which opens the stream.
  void Accept(const StreamIdentity& self);
  void Refuse(const absl::Status& status);
  bool ended() const { return ended_; }

 private:
  ServerStream(std::shared_ptr<CompletionPoller> poller, StreamKind kind,
               void* acceptor, OnArrival on_arrival);
  void OnArrived(bool ok);
  void OnHeadersSent(bool ok);
  void OnFinished(bool ok) {}
  void OnDone(bool ok);
  void Finish(const absl::Status& status);
  void Lose() override;
  void CancelCall() override { context_.TryCancel(); }
  void SendEnd() override { Finish(absl::OkStatus()); }
  std::string remote() const override { return context_.peer(); }

  void* const acceptor_;
  const OnArrival on_arrival_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> call_{
      &context_};
  bool ended_ = false;
  bool finished_ = false;
  Op arrival_op_;
  Op headers_op_;
  Op finish_op_;
  Op done_op_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_PEER_STREAM_H_
