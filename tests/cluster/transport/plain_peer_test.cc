// SPDX-License-Identifier: Apache-2.0
// The transport against a peer that does what it likes.
#include "tests/testing/plain_peer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "cluster/transport/link_transport.h"
#include "tests/testing/connected_channel.h"
#include "tests/testing/grpc_world.h"
#include "tests/testing/soon.h"

namespace ringfleet::cluster {
namespace {

using ::ringfleet::testing::ConnectedChannel;
using ::ringfleet::testing::GrpcWorld;
using ::ringfleet::testing::PlainPeer;
using ::ringfleet::testing::Soon;
using ::testing::HasSubstr;

class PlainPeerTest : public ::testing::Test {
 protected:
  explicit PlainPeerTest(size_t max_queued_bytes = 64 << 20,
                         size_t warm_up_bytes = 0)
      : world_(2, {.spin = Spin::kNever,
                   .max_queued_bytes = max_queued_bytes,
                   .warm_up_bytes = warm_up_bytes}),
        peer_(world_.addresses()[0]) {
    world_.world().rings.clear();
    std::thread connecting([this] {
      auto transport = world_.Connect(0);
      ASSERT_TRUE(transport.ok()) << transport.status();
      transport_ = *std::move(transport);
    });
    peer_.Join();
    connecting.join();
  }

  absl::StatusOr<ReceivedFrame> Receive(Deadline deadline = Soon()) {
    const Source source = {1, Lane::kDirect};
    size_t index = 0;
    return transport_->Receive({&source, 1}, deadline, &index);
  }

  GrpcWorld world_;
  PlainPeer peer_;
  std::unique_ptr<Transport> transport_;
};

TEST_F(PlainPeerTest, ACorruptByteIsDataLoss) {
  v1::Frame frame = PlainPeer::Frame(1, "payload");
  frame.set_payload("pAyload");
  peer_.link().Write(frame);
  const auto received = Receive();
  EXPECT_EQ(received.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(received.status().message()), HasSubstr("rank 1"));
}

TEST_F(PlainPeerTest, FramesOfAnotherEpochAreDroppedAndCounted) {
  for (const uint64_t epoch : {0, 2, 1}) {
    v1::Frame frame = PlainPeer::Frame(1, "");
    frame.set_epoch(epoch);
    PlainPeer::Seal(frame);
    peer_.link().Write(frame);
  }
  const auto received = Receive();
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ((*received)->header.epoch, 1u);
  EXPECT_EQ(world_.endpoint(0).dropped_frames(), 2u);
}

TEST_F(PlainPeerTest, AnEmptyFrameSaysNothing) {
  for (const uint64_t sequence : {1, 2}) {
    peer_.link().Write(v1::Frame());
    peer_.link().Write(v1::Frame());
    peer_.link().Write(PlainPeer::Frame(sequence, "payload"));
    const auto received = Receive();
    ASSERT_TRUE(received.ok()) << received.status();
    EXPECT_EQ((*received)->header.sequence, sequence);
  }
  EXPECT_EQ(world_.endpoint(0).dropped_frames(), 0u);
}

TEST_F(PlainPeerTest, AFrameInTheNameOfAnotherRankIsDataLoss) {
  v1::Frame frame = PlainPeer::Frame(1, "");
  frame.set_source(0);
  peer_.link().Write(frame);
  EXPECT_EQ(Receive().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(PlainPeerTest, WarmUpFramesAreDropped) {
  v1::Frame frame = PlainPeer::Frame(0, "warm");
  frame.set_op_descriptor(kWarmUpDescriptor);
  peer_.link().Write(frame);
  peer_.link().Write(PlainPeer::Frame(0, "real"));
  const auto received = Receive();
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ((*received)->header.op_descriptor, PackDescriptor({}));
}

class WarmUpTest : public PlainPeerTest {
 protected:
  WarmUpTest() : PlainPeerTest(1 << 20, /*warm_up_bytes=*/50000) {}
};

TEST_F(WarmUpTest, SendsWholeFramesOfZerosFirst) {
  v1::Frame frame;
  ASSERT_TRUE(peer_.link().Read(&frame));
  EXPECT_EQ(frame.op_descriptor(), kWarmUpDescriptor);
  EXPECT_EQ(frame.sequence(), 0u);
  EXPECT_EQ(frame.payload(), std::string(50000, '\0'));
  v1::Frame sealed = frame;
  PlainPeer::Seal(sealed);
  EXPECT_EQ(frame.crc32c(), sealed.crc32c());
}

TEST_F(PlainPeerTest, ASecondConnectionIsRefused) {
  PlainPeer second(world_.addresses()[0]);
  v1::Frame frame;
  EXPECT_FALSE(second.link().Read(&frame));
  const grpc::Status status = second.LinkStatus();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("already"));
}

// What a stranger claims ends no epoch.
TEST_F(PlainPeerTest, AnotherConfigurationOfARankThatIsHereIsOnlyRefused) {
  const auto stub =
      v1::Collective::NewStub(ConnectedChannel(world_.addresses()[0]));
  for (const char* lane : {"0", "1"}) {  // It has the first only.
    for (const char* config : {"8", "7"}) {
      grpc::ClientContext context;
      context.AddMetadata("rf-epoch", "1");
      context.AddMetadata("rf-source", "1");
      context.AddMetadata("rf-config", config);
      context.AddMetadata("rf-lane", lane);
      EXPECT_EQ(stub->Link(&context)->Finish().error_code(),
                grpc::StatusCode::FAILED_PRECONDITION);
      grpc::ClientContext control;
      control.AddMetadata("rf-epoch", "1");
      control.AddMetadata("rf-source", "1");
      control.AddMetadata("rf-config", config);
      EXPECT_EQ(stub->Control(&control)->Finish().error_code(),
                grpc::StatusCode::FAILED_PRECONDITION);
    }
  }
  ASSERT_TRUE(peer_.link().Write(PlainPeer::Frame(1, "payload")));
  const auto received = Receive();
  EXPECT_TRUE(received.ok()) << received.status();
}

TEST(PlainPeerStartTest, ReadyIsSaidAgainOnAControlStreamThatOpensAgain) {
  GrpcWorld world(2, {.spin = Spin::kNever, .warm_up_bytes = 0});
  world.world().rings.clear();
  absl::Status connected = absl::UnknownError("still connecting");
  std::thread connecting([&] { connected = world.Connect(0).status(); });
  {
    PlainPeer peer(world.addresses()[0]);
    v1::ControlMessage message;
    do {
      ASSERT_TRUE(peer.control().Read(&message));
    } while (!message.has_ready());
    // It is refused until rank 0 has seen the end of the one before.
    do {
      peer.ReopenControl();
    } while (!peer.control().Read(&message));
    while (!message.has_ready() && peer.control().Read(&message)) {
    }
    EXPECT_TRUE(message.has_ready());
    message = PlainPeer::Control();
    message.mutable_ready();
    peer.control().Write(message);
    connecting.join();
  }
  EXPECT_TRUE(connected.ok()) << connected;
}

// Strangers may hold every place for calls of epochs to come, yet a rank that
// is early is let in when its epoch begins.
TEST(PlainPeerStartTest, StrangersInLaterEpochsKeepNoRankOut) {
  constexpr size_t kCalls = 300;
  GrpcWorld world(2, {.spin = Spin::kNever, .warm_up_bytes = 0});
  const auto stub =
      v1::Collective::NewStub(ConnectedChannel(world.addresses()[0]));
  std::vector<grpc::ClientContext> contexts(kCalls);
  grpc::CompletionQueue queue;
  std::vector<std::unique_ptr<
      grpc::ClientAsyncReaderWriter<v1::ControlMessage, v1::ControlMessage>>>
      calls;
  std::vector<grpc::Status> statuses(kCalls);
  for (size_t i = 0; i < kCalls; ++i) {
    contexts[i].AddMetadata("rf-epoch", "18446744073709551615");
    contexts[i].AddMetadata("rf-source", "1");
    contexts[i].AddMetadata("rf-config", "7");
    calls.push_back(stub->AsyncControl(&contexts[i], &queue, nullptr));
  }
  void* tag = nullptr;
  bool ok = false;
  for (size_t i = 0; i < kCalls; ++i) ASSERT_TRUE(queue.Next(&tag, &ok));
  // Whoever finds no place is refused; then the others have them all.
  for (size_t i = 0; i < kCalls; ++i)
    calls[i]->Finish(&statuses[i], &contexts[i]);
  ASSERT_TRUE(queue.Next(&tag, &ok));

  absl::StatusOr<std::unique_ptr<Transport>> early;
  std::thread connecting([&] { early = world.Connect(1); });
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
  while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
  const auto late = world.Connect(0);
  connecting.join();
  EXPECT_TRUE(late.ok()) << late.status();
  EXPECT_TRUE(early.ok()) << early.status();
  for (grpc::ClientContext& context : contexts) context.TryCancel();
  for (size_t i = 1; i < kCalls; ++i) EXPECT_TRUE(queue.Next(&tag, &ok));
  queue.Shutdown();
}

// Before all links are open a caller may only be back after a broken
// connection.
TEST(PlainPeerStartTest, WhileLinksOpenASecondOneMayTryAgain) {
  GrpcWorld world(2, {.spin = Spin::kNever, .warm_up_bytes = 0});
  world.world().rings.clear();
  absl::Status connected = absl::UnknownError("still connecting");
  std::thread connecting([&] { connected = world.Connect(0).status(); });
  {
    PlainPeer first(world.addresses()[0]);
    first.link().WaitForInitialMetadata();
    first.control().WaitForInitialMetadata();
    {
      PlainPeer second(world.addresses()[0]);
      v1::Frame frame;
      EXPECT_FALSE(second.link().Read(&frame));
      const grpc::Status status = second.LinkStatus();
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
      EXPECT_THAT(status.error_message(), HasSubstr("already"));
    }
    v1::ControlMessage message = PlainPeer::Control();
    message.mutable_ready();
    first.control().Write(message);
    EXPECT_TRUE(first.control().Read(&message) && message.has_ready());
    connecting.join();
  }
  EXPECT_TRUE(connected.ok()) << connected;
}

TEST_F(PlainPeerTest, AnUnknownLaneIsRefused) {
  const auto stub =
      v1::Collective::NewStub(ConnectedChannel(world_.addresses()[0]));
  for (const char* lane : {"3", "-1", "right", ""}) {
    grpc::ClientContext context;
    context.AddMetadata("rf-epoch", "1");
    context.AddMetadata("rf-source", "1");
    context.AddMetadata("rf-config", "7");
    context.AddMetadata("rf-lane", lane);
    const grpc::Status status = stub->Link(&context)->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("rf-lane"));
  }
}

TEST_F(PlainPeerTest, AStaleStreamNeverReachesTheNewEpoch) {
  transport_.reset();
  PlainPeer late(world_.addresses()[0]);
  v1::Frame frame;
  EXPECT_FALSE(late.link().Read(&frame));
  EXPECT_EQ(late.LinkStatus().error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(PlainPeerTest, ReceivesTheCauseOfAnAbort) {
  transport_->Abort(absl::InternalError("test"));
  v1::ControlMessage message;
  do {  // Heartbeats may come before.
    ASSERT_TRUE(peer_.control().Read(&message));
  } while (!message.has_abort());
  EXPECT_EQ(message.abort().code(),
            static_cast<uint32_t>(absl::StatusCode::kInternal));
  EXPECT_EQ(message.abort().message(), "rank 0: test");
}

// Nothing piles up for a peer that says so without end and reads nothing.
TEST_F(PlainPeerTest, ThatAPeerLeavesIsAnsweredOnce) {
  v1::ControlMessage leave = PlainPeer::Control();
  leave.mutable_leave();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(peer_.control().Write(leave));
  v1::ControlMessage message = PlainPeer::Control();
  message.mutable_abort()->set_message("enough");
  ASSERT_TRUE(peer_.control().Write(message));
  EXPECT_EQ(Receive(Deadline::Infinite()).status(),
            absl::AbortedError("enough"));
  int answers = 0;
  do {  // The abort comes back behind them.
    ASSERT_TRUE(peer_.control().Read(&message));
    answers += message.has_heard();
  } while (!message.has_abort());
  EXPECT_EQ(answers, 1);
}

// The link and the word that the peer left come over different connections.
TEST_F(PlainPeerTest, TheLinkMayEndBeforeThePeerSaysThatItLeaves) {
  std::thread leaving([this] {
    peer_.EndLink();
    v1::ControlMessage leave = PlainPeer::Control();
    leave.mutable_leave();
    peer_.control().Write(leave);
  });
  const auto received = Receive(Deadline::Infinite());
  leaving.join();
  EXPECT_EQ(received.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(received.status().message()),
              HasSubstr("has left epoch 1"));
}

// Rank 0 of a world of two without rings, in generated code. Reads of Control
// what comes behind Ready when it is told to.
class PlainCallee final : public v1::Collective::Service {
 public:
  grpc::Status Link(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::Frame, v1::Frame>* stream) override {
    context->AddInitialMetadata("rf-lane", "0");
    Answer(*context, *stream);
    v1::Frame frame;
    while (stream->Read(&frame)) {
    }
    return grpc::Status::OK;
  }

  grpc::Status Control(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::ControlMessage, v1::ControlMessage>* stream)
      override {
    Answer(*context, *stream);
    v1::ControlMessage message = PlainPeer::Control();
    message.set_source(0);
    message.mutable_ready();
    stream->Write(message);
    go_on_.WaitForNotification();
    while (stream->Read(&message)) {
      if (message.has_ready() || message.has_heartbeat()) continue;
      last_words_.push_back(message);
      message = PlainPeer::Control();
      message.set_source(0);
      message.mutable_heard();
      stream->Write(message);
    }
    ended_.Notify();
    return grpc::Status::OK;
  }

  void GoOn() { go_on_.Notify(); }
  // What came besides Ready and heartbeats until the stream ended.
  const std::vector<v1::ControlMessage>& LastWords() {
    ended_.WaitForNotification();
    return last_words_;
  }

 private:
  template <typename Stream>
  static void Answer(grpc::ServerContext& context, Stream& stream) {
    context.AddInitialMetadata("rf-epoch", "1");
    context.AddInitialMetadata("rf-source", "0");
    context.AddInitialMetadata("rf-config", "7");
    stream.SendInitialMetadata();
  }

  absl::Notification go_on_;
  absl::Notification ended_;
  std::vector<v1::ControlMessage> last_words_;
};

// gRPC drops what a callee has not read when the caller cancels, so the caller
// waits for the answer, 200 ms at most.
class LastWordsTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Ends, LastWordsTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "Abort" : "Leave";
                         });

TEST_P(LastWordsTest, BehindHeartbeatsReachASlowReader) {
  constexpr std::chrono::milliseconds kTwoHeartbeats(250);
  constexpr std::chrono::milliseconds kSlow(50);
  constexpr std::chrono::milliseconds kFarewell(200);
  PlainCallee callee;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&callee);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  GrpcWorld world(2);
  world.world().rings.clear();
  world.world().addresses[0] = absl::StrCat("127.0.0.1:", port);
  auto transport = world.Connect(1);
  ASSERT_TRUE(transport.ok()) << transport.status();

  std::this_thread::sleep_for(kTwoHeartbeats);
  const auto start = std::chrono::steady_clock::now();
  std::thread leaving([&] {
    if (GetParam()) (*transport)->Abort(absl::InternalError("test"));
    transport->reset();
  });
  std::this_thread::sleep_for(kSlow);
  callee.GoOn();
  const std::vector<v1::ControlMessage>& words = callee.LastWords();
  const auto took = std::chrono::steady_clock::now() - start;
  leaving.join();
  if (words.empty()) {
    EXPECT_GE(took, kFarewell);
  } else {
    EXPECT_TRUE(GetParam() ? words[0].has_abort() : words[0].has_leave())
        << words[0].ShortDebugString();
  }
}

// Memory comes back when the epoch ends, whatever the peer does.
TEST_F(PlainPeerTest, APeerThatDoesNotReadHoldsMemoryUntilTheAbort) {
  const std::string payload(kMaxPayloadBytes, 'x');
  PayloadLedger ledger;
  for (uint64_t i = 0; i < 64; ++i) {
    ASSERT_TRUE(transport_
                    ->Send(1, Lane::kDirect,
                           {.epoch = 1, .sequence = i, .op_descriptor = 1},
                           payload, ledger)
                    .ok());
  }
  EXPECT_EQ(
      transport_->AwaitReleased(ledger, Deadline::After(absl::Milliseconds(50)))
          .code(),
      absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(ledger.released());
  transport_->Abort(absl::InternalError("enough"));
  EXPECT_EQ(transport_->AwaitReleased(ledger, Soon()),
            absl::InternalError("enough"));
  transport_.reset();
}

TEST_F(PlainPeerTest, APeerThatDoesNotReadDoesNotHoldUpARankThatLeaves) {
  // What is in the connection already may be held for longer than the test.
  static const std::string& payload = *new std::string(kMaxPayloadBytes, 'x');
  PayloadLedger ledger;
  for (uint64_t i = 0; i < 64; ++i) {
    ASSERT_TRUE(transport_
                    ->Send(1, Lane::kDirect,
                           {.epoch = 1, .sequence = i, .op_descriptor = 1},
                           payload, ledger)
                    .ok());
  }
  const auto start = std::chrono::steady_clock::now();
  transport_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

// Behind what a frame has, as a later version of the protocol might.
void AddUnknownField(v1::Frame& frame, size_t bytes) {
  frame.GetReflection()->MutableUnknownFields(&frame)->AddLengthDelimited(
      1000, std::string(bytes, 'x'));
}

TEST_F(PlainPeerTest, FieldsThatAreNotKnownYetAreSkipped) {
  v1::Frame frame = PlainPeer::Frame(1, "payload");
  AddUnknownField(frame, 100);
  peer_.link().Write(frame);
  const auto received = Receive();
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ((*received)->payload_bytes, 7u);
}

TEST_F(PlainPeerTest, AMessageLargerThanAnyFrameIsDataLoss) {
  v1::Frame frame = PlainPeer::Frame(1, "");
  AddUnknownField(frame, 3 << 20);
  peer_.link().Write(frame);
  const absl::Status status = Receive().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("want at most"));
}

class FloodTest : public PlainPeerTest {
 protected:
  FloodTest() : PlainPeerTest(/*max_queued_bytes=*/1 << 20) {}

  // Until the writer has come to rest; how often it wrote until then.
  static int AwaitHeld(const std::atomic<int>& written) {
    int held = -1;
    while (held != written || written == 0) {
      held = written;
      const auto until =
          std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
      while (std::chrono::steady_clock::now() < until) {
        std::this_thread::yield();
      }
    }
    return held;
  }
};

// A peer that sends without end is held by flow control once the limit is
// queued, and goes on when frames are taken. The sockets' buffers and gRPC's
// window hold some tens of MB in front of the queue.
TEST_F(FloodTest, IsHeldAndThenResumed) {
  constexpr int kEndless = 5000;
  const std::string payload(100 << 10, 'x');
  std::atomic<int> written{0};
  std::atomic<bool> enough{false};
  std::thread flood([&] {
    for (int i = 0; i < kEndless && !enough; ++i) {
      if (!peer_.link().Write(PlainPeer::Frame(i, payload))) return;
      ++written;
    }
  });
  // Nothing is taken: the writer must come to rest far below the end.
  const int held = AwaitHeld(written);
  EXPECT_LT(held, kEndless / 4);
  int taken = 0;
  const auto take = [&] {
    const auto frame = Receive();
    EXPECT_TRUE(frame.ok()) << frame.status();
    if (!frame.ok()) return false;
    EXPECT_EQ((*frame)->header.sequence, static_cast<uint64_t>(taken));
    ++taken;
    return true;
  };
  bool fine = true;
  while (fine && taken < held + 100) fine = take();
  enough = true;
  // Room for the frame that the writer may be waiting with.
  while (fine && taken < written) fine = take();
  if (!fine) transport_.reset();  // Ends the writer.
  flood.join();
  while (fine && taken < written) fine = take();
  EXPECT_GE(written, held + 100);
  EXPECT_EQ(taken, written);
}

// The whole message is kept for as long as its frame is.
TEST_F(FloodTest, WithoutPayloadIsHeldToo) {
  constexpr int kEndless = 500;
  std::atomic<int> written{0};
  std::thread flood([&] {
    v1::Frame frame = PlainPeer::Frame(1, "");
    AddUnknownField(frame, 1 << 20);
    while (written < kEndless && peer_.link().Write(frame)) ++written;
  });
  EXPECT_LT(AwaitHeld(written), kEndless / 4);
  transport_.reset();  // Ends the writer.
  flood.join();
}

}  // namespace
}  // namespace ringfleet::cluster
