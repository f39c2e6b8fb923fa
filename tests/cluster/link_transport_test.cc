// SPDX-License-Identifier: Apache-2.0
#include "cluster/link_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "cluster/group_communicator.h"
#include "protos/collective.grpc.pb.h"
#include "tests/testing/collective_cases.h"
#include "tests/testing/grpc_world.h"

namespace ringfleet::cluster {
namespace {

using ::ringfleet::testing::ExactSum;
using ::ringfleet::testing::GrpcWorld;
using ::ringfleet::testing::RankOrderSum;
using ::ringfleet::testing::RankValues;
using ::ringfleet::testing::SumTolerance;
using ::ringfleet::testing::UnevenOffsets;
using ::ringfleet::testing::WholeWorld;
using ::testing::AllOf;
using ::testing::HasSubstr;

Deadline Soon() { return Deadline::After(absl::Seconds(60)); }

class WorldTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Sizes, WorldTest, ::testing::Values(1, 2, 3, 5, 8));

TEST_P(WorldTest, AllReduceSumsAndRanksAgreeBitwise) {
  const int ranks = GetParam();
  GrpcWorld world(ranks);
  for (const Wire wire : {Wire::kF32, Wire::kBf16}) {
    std::vector<std::vector<std::vector<float>>> results(ranks);
    const std::vector<size_t> sizes = {0, 1, 2, 3, 7, 64, 1000, 7168, 300000};
    world.RunConnected(
        [&](Transport& transport) {
          GroupCommunicator communicator(&transport, WholeWorld(ranks));
          for (const size_t size : sizes) {
            std::vector<float> data = RankValues(transport.rank(), size);
            const absl::Status status = communicator.AllReduce(
                absl::MakeSpan(data), wire, /*check=*/size, Soon());
            ASSERT_TRUE(status.ok()) << status;
            results[transport.rank()].push_back(std::move(data));
          }
        },
        /*epoch=*/wire == Wire::kF32 ? 1 : 2);
    for (size_t s = 0; s < sizes.size(); ++s) {
      const std::vector<double> exact = ExactSum(ranks, sizes[s]);
      const std::vector<float> tolerance = SumTolerance(ranks, sizes[s], wire);
      for (int rank = 0; rank < ranks; ++rank) {
        ASSERT_EQ(results[rank].size(), sizes.size());
        ASSERT_EQ(results[rank][s], results[0][s])
            << "rank " << rank << ", " << sizes[s] << " elements";
      }
      for (size_t i = 0; i < sizes[s]; ++i) {
        ASSERT_NEAR(results[0][s][i], exact[i], tolerance[i])
            << i << " of " << sizes[s];
      }
    }
  }
}

TEST_P(WorldTest, AllGatherReduceScatterAndBarrier) {
  const int ranks = GetParam();
  GrpcWorld world(ranks);
  world.RunConnected([&](Transport& transport) {
    GroupCommunicator group(&transport, WholeWorld(ranks));
    for (const size_t size : {0, 1, 2, 3, 7, 64, 1000, 7168, 300000}) {
      const std::vector<uint64_t> offsets = UnevenOffsets(ranks, size);
      const uint64_t begin = offsets[group.rank()];
      const uint64_t end = offsets[group.rank() + 1];
      std::vector<float> sum = RankValues(group.rank(), size);
      absl::Status status =
          group.ReduceScatter(absl::MakeSpan(sum), offsets, Wire::kF32, Soon());
      ASSERT_TRUE(status.ok()) << status;
      const std::vector<double> exact = ExactSum(ranks, size);
      const std::vector<float> tolerance =
          SumTolerance(ranks, size, Wire::kF32);
      for (uint64_t i = begin; i < end; ++i) {
        ASSERT_NEAR(sum[i], exact[i], tolerance[i]);
      }
      std::string text(size, '?');
      for (uint64_t i = begin; i < end; ++i) text[i] = static_cast<char>(i);
      status = group.AllGather(absl::MakeSpan(text), offsets, Soon());
      ASSERT_TRUE(status.ok()) << status;
      for (size_t i = 0; i < size; ++i) {
        ASSERT_EQ(text[i], static_cast<char>(i));
      }
      ASSERT_TRUE(group.Barrier(Soon()).ok());
    }
  });
}

TEST(LinkTransportTest, OneShotOverTheWireIsTheRankOrderSumBitwise) {
  GrpcWorld world(3);
  world.RunConnected([&](Transport& transport) {
    GroupCommunicator group(&transport, WholeWorld(3));
    for (const Wire wire : {Wire::kF32, Wire::kBf16}) {
      std::vector<float> data = RankValues(transport.rank(), 7168);
      ASSERT_TRUE(group.AllReduce(absl::MakeSpan(data), wire, 1, Soon()).ok());
      EXPECT_EQ(data, RankOrderSum(3, 7168, wire));
    }
  });
}

// The waiting thread and the background thread take turns many times.
TEST(LinkTransportTest, PausesBetweenOperationsLoseNothing) {
  GrpcWorld world(2, {.ranks_on_host = 1, .spin = Spin::kAlways});
  world.RunConnected([&](Transport& transport) {
    GroupCommunicator group(&transport, WholeWorld(2));
    for (int round = 0; round < 60; ++round) {
      if (round % 3 == 0) {  // Longer than the background thread waits.
        const auto until =
            std::chrono::steady_clock::now() + std::chrono::milliseconds(15);
        while (std::chrono::steady_clock::now() < until) {
          std::this_thread::yield();
        }
      }
      std::vector<float> data = RankValues(transport.rank(), 100000);
      const absl::Status status =
          group.AllReduce(absl::MakeSpan(data), Wire::kF32, 1, Soon());
      ASSERT_TRUE(status.ok()) << status;
    }
  });
}

TEST(LinkTransportTest, NamesTheRankThatNeverJoins) {
  GrpcWorld world(3);
  world.Run([&](int rank) {
    if (rank == 2) return;
    const auto transport = world.Connect(rank, 1, 7, absl::Milliseconds(300));
    EXPECT_EQ(transport.status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(transport.status().message()),
                HasSubstr("rank 2 (" + world.addresses()[2] + ")"));
  });
}

TEST(LinkTransportTest, WaitsForALatePeer) {
  GrpcWorld world(2);
  std::unique_ptr<Transport> first;
  std::thread early([&] { first = *world.Connect(0); });
  std::unique_ptr<Transport> second = *world.Connect(1);
  early.join();
  EXPECT_EQ(first->world_size(), 2);
}

TEST(LinkTransportTest, NamesTheOperationAndTheRankThatDoesNotAnswer) {
  GrpcWorld world(2);
  world.RunConnected([&](Transport& transport) {
    if (transport.rank() == 1) {  // Waits, but for something else.
      const absl::Status status =
          transport.Receive(0, Soon()).ok()
              ? transport.Receive(0, Deadline::Infinite()).status()
              : absl::OkStatus();
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
      return;
    }
    GroupCommunicator group(&transport, WholeWorld(2));
    const absl::Status status =
        group.Barrier(Deadline::After(absl::Milliseconds(100)));
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("barrier"), HasSubstr("rank 1")));
  });
}

TEST(LinkTransportTest, AbortReleasesEveryRankWithTheFirstCause) {
  GrpcWorld world(4);
  world.RunConnected([&](Transport& transport) {
    if (transport.rank() == 3) {
      return transport.Abort(absl::DataLossError("the disk is on fire"));
    }
    GroupCommunicator group(&transport, WholeWorld(4));
    const absl::Status status = group.Barrier(Deadline::Infinite());
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(status.message(), "rank 3: the disk is on fire");
    EXPECT_EQ(group.Barrier(Deadline::Infinite()), status);
  });
}

TEST(LinkTransportTest, AbortFromAnotherThreadWakesTheWaiter) {
  GrpcWorld world(2);
  world.RunConnected([&](Transport& transport) {
    std::thread other;
    if (transport.rank() == 0) {
      other =
          std::thread([&] { transport.Abort(absl::CancelledError("enough")); });
    }
    const auto frame =
        transport.Receive(1 - transport.rank(), Deadline::Infinite());
    EXPECT_EQ(frame.status().code(), absl::StatusCode::kCancelled);
    if (other.joinable()) other.join();
  });
}

TEST(LinkTransportTest, AKilledPeerIsReportedByAllOthers) {
  GrpcWorld world(3);
  world.RunConnected([&](Transport& transport) {
    if (transport.rank() == 2) return world.Kill(2);
    GroupCommunicator group(&transport, WholeWorld(3));
    const auto start = std::chrono::steady_clock::now();
    const absl::Status status = group.Barrier(Soon());
    EXPECT_LT(std::chrono::steady_clock::now() - start,
              std::chrono::seconds(5));
    EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsAborted(status))
        << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2"));
  });
}

TEST(LinkTransportTest, APeerThatLeavesIsNotWaitedFor) {
  GrpcWorld world(2);
  std::vector<std::unique_ptr<Transport>> transports(2);
  world.Run([&](int rank) { transports[rank] = *world.Connect(rank); });
  transports[1].reset();
  const auto frame = transports[0]->Receive(1, Deadline::Infinite());
  EXPECT_EQ(frame.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(frame.status().message()),
              HasSubstr("has left epoch 1"));
}

TEST(LinkTransportTest, ANewEpochFormsInTheSameProcesses) {
  GrpcWorld world(3);
  for (uint64_t epoch = 1; epoch <= 5; ++epoch) {
    world.RunConnected(
        [&](Transport& transport) {
          EXPECT_EQ(transport.epoch(), epoch);
          GroupCommunicator group(&transport, WholeWorld(3));
          std::vector<float> data = {1};
          if (epoch % 2 == 0 && transport.rank() == 1) {
            return transport.Abort(absl::InternalError("test"));
          }
          const absl::Status status =
              group.AllReduce(absl::MakeSpan(data), Wire::kF32, 0, Soon());
          EXPECT_EQ(status.ok(), epoch % 2 == 1) << status;
          EXPECT_EQ(data[0], status.ok() ? 3.0f : data[0]);
        },
        epoch);
  }
}

TEST(LinkTransportTest, EnteringAnEpochEndsTheOneBefore) {
  GrpcWorld world(2);
  std::vector<std::unique_ptr<Transport>> old(2);
  world.Run([&](int rank) { old[rank] = *world.Connect(rank, 1); });
  world.RunConnected([](Transport&) {}, 2);
  for (int rank = 0; rank < 2; ++rank) {
    const auto frame = old[rank]->Receive(1 - rank, Deadline::Infinite());
    EXPECT_FALSE(frame.ok());
  }
}

TEST(LinkTransportTest, AStaleEpochIsRefused) {
  GrpcWorld world(2);
  world.RunConnected([](Transport&) {}, 5);
  // Its own endpoint remembers.
  EXPECT_EQ(world.Connect(0, 5).status().code(),
            absl::StatusCode::kFailedPrecondition);
  // A rank whose process restarted does not, but its peer does.
  CollectiveEndpoint zombie({});
  grpc::ServerBuilder builder;
  zombie.Register(builder);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  zombie.Start();
  const auto transport = zombie.Connect(4, 1, world.addresses(), 7, Soon());
  EXPECT_EQ(transport.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(transport.status().message()),
              AllOf(HasSubstr("epoch 4"), HasSubstr("epoch 5")));
  server->Shutdown();
  zombie.Shutdown();
}

TEST(LinkTransportTest, AnotherConfigurationIsRefused) {
  GrpcWorld world(2);
  world.Run([&](int rank) {
    const absl::Status status =
        world.Connect(rank, 1, /*config=*/100 + rank).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("100"), HasSubstr("101")));
  });
}

TEST(LinkTransportTest, AnImpossibleRankIsInvalid) {
  GrpcWorld world(2);
  EXPECT_EQ(world.endpoint(0)
                .Connect(1, 2, world.addresses(), 7, Soon())
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(LinkTransportTest, DesyncIsNamed) {
  GrpcWorld world(2);
  world.RunConnected([&](Transport& transport) {
    GroupCommunicator group(&transport, WholeWorld(2));
    std::vector<float> data(transport.rank() == 0 ? 28 : 40);
    const absl::Status status =
        group.AllReduce(absl::MakeSpan(data), Wire::kF32, 0, Soon());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("of 28 elements"), HasSubstr("of 40")));
  });
}

// A peer that speaks the protocol with nothing but generated code: rank 1 of a
// world of two, whose rank 0 is ours.
class PlainPeer {
 public:
  explicit PlainPeer(GrpcWorld& world, uint64_t epoch = 1)
      : stub_(v1::Collective::NewStub(grpc::CreateChannel(
            world.addresses()[0], grpc::InsecureChannelCredentials()))) {
    for (grpc::ClientContext* context : {&link_context_, &control_context_}) {
      context->AddMetadata("rf-epoch", std::to_string(epoch));
      context->AddMetadata("rf-source", "1");
      context->AddMetadata("rf-config", "7");
    }
    link_ = stub_->Link(&link_context_);
    control_ = stub_->Control(&control_context_);
  }
  ~PlainPeer() {
    link_context_.TryCancel();
    control_context_.TryCancel();
    if (!link_finished_) link_->Finish();
    control_->Finish();
  }

  // How the link ended. Requires that it has.
  grpc::Status LinkStatus() {
    link_finished_ = true;
    return link_->Finish();
  }

  // Until both streams are accepted and rank 0 is ready.
  void Join() {
    link_->WaitForInitialMetadata();
    control_->WaitForInitialMetadata();
    v1::ControlMessage message;
    message.set_epoch(1);
    message.set_source(1);
    message.mutable_ready();
    control_->Write(message);
    ASSERT_TRUE(control_->Read(&message));
    EXPECT_TRUE(message.has_ready());
  }

  // A frame like `theirs`, with its checksum.
  static v1::Frame Reply(const v1::Frame& theirs, const std::string& payload) {
    v1::Frame frame = theirs;
    frame.set_source(1);
    frame.set_payload(payload);
    Seal(frame);
    return frame;
  }
  static void Seal(v1::Frame& frame) {
    const FrameHeader header = {.group = frame.group(),
                                .source = frame.source(),
                                .epoch = frame.epoch(),
                                .sequence = frame.sequence(),
                                .op_descriptor = frame.op_descriptor(),
                                .step = frame.step(),
                                .offset_bytes = frame.offset_bytes(),
                                .check = frame.check(),
                                .count = frame.count()};
    frame.set_crc32c(FrameCrc(header, frame.payload()));
  }

  grpc::ClientReaderWriter<v1::Frame, v1::Frame>& link() { return *link_; }
  grpc::ClientReaderWriter<v1::ControlMessage, v1::ControlMessage>& control() {
    return *control_;
  }

 private:
  const std::unique_ptr<v1::Collective::Stub> stub_;
  bool link_finished_ = false;
  grpc::ClientContext link_context_;
  grpc::ClientContext control_context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::Frame, v1::Frame>> link_;
  std::unique_ptr<
      grpc::ClientReaderWriter<v1::ControlMessage, v1::ControlMessage>>
      control_;
};

class PlainPeerTest : public ::testing::Test {
 protected:
  explicit PlainPeerTest(size_t max_queued_bytes = 64 << 20)
      : world_(2, {.max_queued_bytes = max_queued_bytes}), peer_(world_) {
    std::thread connecting([this] {
      transport_ = *world_.endpoint(0).Connect(
          1, 0, {world_.addresses()[0], "plain"}, 7, Soon());
    });
    peer_.Join();
    connecting.join();
  }

  GrpcWorld world_;
  PlainPeer peer_;
  std::unique_ptr<Transport> transport_;
};

TEST_F(PlainPeerTest, TakesPartInAnAllReduce) {
  std::thread other([this] {
    v1::Frame theirs;
    ASSERT_TRUE(peer_.link().Read(&theirs));
    EXPECT_EQ(theirs.count(), 2u);
    EXPECT_EQ(theirs.check(), 99u);
    ASSERT_EQ(theirs.payload().size(), 8u);
    const float mine[2] = {10, 20};
    peer_.link().Write(PlainPeer::Reply(
        theirs, std::string(reinterpret_cast<const char*>(mine), 8)));
  });
  GroupCommunicator group(transport_.get(), WholeWorld(2));
  std::vector<float> data = {1, 2};
  const absl::Status status =
      group.AllReduce(absl::MakeSpan(data), Wire::kF32, 99, Soon());
  other.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(data, (std::vector<float>{11, 22}));
}

TEST_F(PlainPeerTest, ACorruptByteIsDataLoss) {
  v1::Frame frame;
  frame.set_epoch(1);
  frame = PlainPeer::Reply(frame, "payload");
  frame.set_payload("pAyload");
  peer_.link().Write(frame);
  const auto received = transport_->Receive(1, Soon());
  EXPECT_EQ(received.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(received.status().message()), HasSubstr("rank 1"));
}

TEST_F(PlainPeerTest, FramesOfAnotherEpochAreDroppedAndCounted) {
  v1::Frame frame;
  frame.set_source(1);
  for (const uint64_t epoch : {0, 2, 1}) {
    frame.set_epoch(epoch);
    PlainPeer::Seal(frame);
    peer_.link().Write(frame);
  }
  const auto received = transport_->Receive(1, Soon());
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(received->header.epoch, 1u);
  EXPECT_EQ(world_.endpoint(0).dropped_frames(), 2u);
}

TEST_F(PlainPeerTest, AFrameInTheNameOfAnotherRankIsDataLoss) {
  v1::Frame frame;
  frame.set_epoch(1);
  frame.set_source(0);
  peer_.link().Write(frame);
  EXPECT_EQ(transport_->Receive(1, Soon()).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST_F(PlainPeerTest, ASecondConnectionIsRefused) {
  PlainPeer second(world_);
  v1::Frame frame;
  EXPECT_FALSE(second.link().Read(&frame));
  const grpc::Status status = second.LinkStatus();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("already"));
}

TEST_F(PlainPeerTest, AStaleStreamNeverReachesTheNewEpoch) {
  transport_.reset();
  PlainPeer late(world_);
  v1::Frame frame;
  EXPECT_FALSE(late.link().Read(&frame));
  EXPECT_EQ(late.LinkStatus().error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(PlainPeerTest, ReceivesTheCauseOfAnAbort) {
  transport_->Abort(absl::InternalError("test"));
  v1::ControlMessage message;
  ASSERT_TRUE(peer_.control().Read(&message));
  ASSERT_TRUE(message.has_abort());
  EXPECT_EQ(message.abort().code(),
            static_cast<uint32_t>(absl::StatusCode::kInternal));
  EXPECT_EQ(message.abort().message(), "rank 0: test");
}

class FloodTest : public PlainPeerTest {
 protected:
  FloodTest() : PlainPeerTest(/*max_queued_bytes=*/1 << 20) {}
};

// A peer that sends without end is held by flow control once the limit is
// queued, and goes on when frames are taken.
TEST_F(FloodTest, IsHeldAndThenResumed) {
  constexpr int kFrames = 400;
  std::atomic<int> written{0};
  std::thread flood([&] {
    v1::Frame frame;
    frame.set_epoch(1);
    for (int i = 0; i < kFrames; ++i) {
      frame.set_sequence(i);
      frame = PlainPeer::Reply(frame, std::string(100 << 10, 'x'));
      if (!peer_.link().Write(frame)) return;
      ++written;
    }
  });
  // Nothing is taken: the writer must come to rest far below the end.
  int seen = -1;
  while (seen != written || written == 0) {
    seen = written;
    const auto wait = transport_->Flush(Deadline::After(absl::Milliseconds(1)));
    EXPECT_TRUE(wait.ok());
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    while (std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
  }
  EXPECT_LT(written, kFrames / 2);
  for (int i = 0; i < kFrames; ++i) {
    const auto frame = transport_->Receive(1, Soon());
    ASSERT_TRUE(frame.ok()) << frame.status();
    ASSERT_EQ(frame->header.sequence, static_cast<uint64_t>(i));
  }
  flood.join();
}

}  // namespace
}  // namespace ringfleet::cluster
