// SPDX-License-Identifier: Apache-2.0
// The collectives over real streams; what they compute is the subject of
// collectives_test.cc, over a network in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/collectives/group_communicator.h"
#include "tests/testing/collective_cases.h"
#include "tests/testing/grpc_world.h"
#include "tests/testing/plain_peer.h"
#include "tests/testing/soon.h"

namespace ringfleet::cluster {
namespace {

using ::ringfleet::testing::GrpcWorld;
using ::ringfleet::testing::PlainPeer;
using ::ringfleet::testing::RankOrderPartialSum;
using ::ringfleet::testing::RankOrderSum;
using ::ringfleet::testing::RankValues;
using ::ringfleet::testing::Soon;
using ::ringfleet::testing::UnevenOffsets;
using ::testing::AllOf;
using ::testing::HasSubstr;

GroupCommunicator AllRanks(Transport& transport,
                           AlgorithmTable table = AlgorithmTable::Default()) {
  return GroupCommunicator(&transport, WorldGroup(transport.world_size()),
                           std::move(table), nullptr);
}

class LinkCollectivesTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Sizes, LinkCollectivesTest,
                         ::testing::Values(1, 2, 3, 5, 8));

TEST_P(LinkCollectivesTest, AllReduceIsTheSumBitwise) {
  const int ranks = GetParam();
  const std::vector<size_t> sizes = {0, 1, 2, 3, 7, 64, 1000, 7168, 300000};
  GrpcWorld world(ranks);
  uint64_t epoch = 0;
  for (const Wire wire : {Wire::kF32, Wire::kBf16, Wire::kInt8}) {
    std::vector<std::vector<float>> sums;
    for (const size_t size : sizes) {
      sums.push_back(ranks == 1 ? RankValues(0, size)
                                : RankOrderSum(ranks, size, wire));
    }
    for (const Algorithm algorithm :
         {Algorithm::kOneShot, Algorithm::kTwoShot}) {
      world.RunConnected(
          [&](Transport& transport) {
            GroupCommunicator group =
                AllRanks(transport, AlgorithmTable::Only(algorithm));
            for (size_t i = 0; i < sizes.size(); ++i) {
              std::vector<float> data = RankValues(transport.rank(), sizes[i]);
              const absl::Status status =
                  group.AllReduce(data, absl::MakeSpan(data), {wire},
                                  /*check=*/sizes[i], Soon());
              ASSERT_TRUE(status.ok()) << status;
              ASSERT_EQ(data, sums[i]);
            }
          },
          ++epoch);
    }
  }
}

TEST_P(LinkCollectivesTest, RanksOfARingAgreeBitwise) {
  const int ranks = GetParam();
  const std::vector<size_t> sizes = {0, 1, 3, 1000, 300000};
  GrpcWorld world(ranks);
  std::vector<std::vector<std::vector<float>>> results(ranks);
  world.RunConnected([&](Transport& transport) {
    GroupCommunicator group =
        AllRanks(transport, AlgorithmTable::Only(Algorithm::kRing));
    for (const size_t size : sizes) {
      std::vector<float> data = RankValues(transport.rank(), size);
      const absl::Status status = group.AllReduce(data, absl::MakeSpan(data),
                                                  {Wire::kBf16}, size, Soon());
      ASSERT_TRUE(status.ok()) << status;
      results[transport.rank()].push_back(std::move(data));
      // Shares of many frames, some empty, in both directions at once.
      const std::vector<uint64_t> offsets = UnevenOffsets(ranks, size);
      const uint64_t begin = offsets[group.rank()];
      std::string text(size, '?');
      for (uint64_t i = begin; i < offsets[group.rank() + 1]; ++i) {
        text[i] = static_cast<char>(i);
      }
      const std::string share =
          text.substr(begin, offsets[group.rank() + 1] - begin);
      ASSERT_TRUE(
          group.AllGather(share, absl::MakeSpan(text), offsets, Soon()).ok());
      for (size_t i = 0; i < size; ++i) {
        ASSERT_EQ(text[i], static_cast<char>(i));
      }
      ASSERT_TRUE(group.Barrier(Soon()).ok());
    }
  });
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
}

TEST(LinkCollectivesTest, NamesTheOperationAndTheRankThatDoesNotAnswer) {
  GrpcWorld world(2);
  world.RunConnected([&](Transport& transport) {
    if (transport.rank() == 1) {  // Waits, but for something else.
      const Source source = {0, Lane::kRight};
      size_t index = 0;
      const absl::Status status =
          transport.Receive({&source, 1}, Deadline::Infinite(), &index)
              .status();
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
      return;
    }
    GroupCommunicator group = AllRanks(transport);
    const absl::Status status =
        group.Barrier(Deadline::After(absl::Milliseconds(100)));
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("barrier"), HasSubstr("rank 1")));
  });
}

TEST(LinkCollectivesTest, ADesyncIsNamedOnBothSides) {
  GrpcWorld world(2);
  world.RunConnected([&](Transport& transport) {
    GroupCommunicator group = AllRanks(transport);
    std::vector<float> data(transport.rank() == 0 ? 28 : 40);
    const absl::Status status =
        group.AllReduce(data, absl::MakeSpan(data), {}, 0, Soon());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("of 28 elements"), HasSubstr("of 40")));
  });
}

TEST(LinkCollectivesTest, ANewEpochFormsAfterAnAbort) {
  GrpcWorld world(3);
  for (uint64_t epoch = 1; epoch <= 5; ++epoch) {
    world.RunConnected(
        [&](Transport& transport) {
          EXPECT_EQ(transport.epoch(), epoch);
          if (epoch % 2 == 0 && transport.rank() == 1) {
            return transport.Abort(absl::InternalError("test"));
          }
          GroupCommunicator group = AllRanks(transport);
          std::vector<float> data = {1};
          const absl::Status status =
              group.AllReduce(data, absl::MakeSpan(data), {}, 0, Soon());
          EXPECT_EQ(status.ok(), epoch % 2 == 1) << status;
          EXPECT_TRUE(!status.ok() || data[0] == 3.0f);
        },
        epoch);
  }
}

// The root has done when all is on its way, and may leave at once.
TEST(LinkCollectivesTest, ARankMayLeaveAsSoonAsItsOwnOperationIsOver) {
  constexpr size_t kElements = size_t{4} << 20;
  GrpcWorld world(2);
  for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
    std::vector<std::unique_ptr<Transport>> transports(2);
    world.Run(
        [&](int rank) { transports[rank] = *world.Connect(rank, epoch); });
    world.Run([&](int rank) {
      const std::unique_ptr<Transport> transport = std::move(transports[rank]);
      GroupCommunicator group =
          AllRanks(*transport, AlgorithmTable::Only(Algorithm::kOneShot));
      std::vector<float> data(kElements, static_cast<float>(rank));
      const absl::Status status = group.Broadcast(
          absl::MakeSpan(data), /*root=*/0, {Wire::kBf16}, Soon());
      EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status;
      EXPECT_EQ(data.back(), 0.0f);
    });
  }
}

// Nothing but what the .proto file says.
TEST(LinkCollectivesTest, GeneratedCodeTakesPart) {
  GrpcWorld world(2);
  world.world().rings.clear();
  PlainPeer peer(world.addresses()[0]);
  std::thread other([&] {
    peer.Join();
    v1::Frame frame;
    ASSERT_TRUE(peer.link().Read(&frame));
    EXPECT_EQ(frame.count(), 2u);
    EXPECT_EQ(frame.check(), 99u);
    ASSERT_EQ(frame.payload().size(), 8u);
    const float mine[2] = {10, 20};
    frame.set_source(1);
    frame.set_payload(std::string(reinterpret_cast<const char*>(mine), 8));
    PlainPeer::Seal(frame);
    peer.link().Write(frame);
  });
  const auto transport = world.Connect(0);
  ASSERT_TRUE(transport.ok()) << transport.status();
  GroupCommunicator group = AllRanks(**transport);
  std::vector<float> data = {1, 2};
  const absl::Status status =
      group.AllReduce(data, absl::MakeSpan(data), {}, 99, Soon());
  other.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(data, (std::vector<float>{11, 22}));
}

// What a peer sends in place of the frame that comes next, and the error.
struct WrongFrame {
  const char* name;
  void (*spoil)(v1::Frame& frame);
  const char* text;
};

class BlameTest : public ::testing::TestWithParam<WrongFrame> {};

INSTANTIATE_TEST_SUITE_P(
    , BlameTest,
    ::testing::Values(WrongFrame{"Operation",
                                 [](v1::Frame& f) { f.set_sequence(2); },
                                 "rank 1 is in"},
                      WrongFrame{"Check", [](v1::Frame& f) { f.set_check(98); },
                                 "ranks chose different experts"},
                      WrongFrame{"Place",
                                 [](v1::Frame& f) { f.set_offset_bytes(4); },
                                 "rank 1 sends"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(BlameTest, ThePeerThatIsInAnotherPlaceIsSuspected) {
  GrpcWorld world(2);
  world.world().rings.clear();
  PlainPeer peer(world.addresses()[0]);
  v1::ControlMessage message;
  std::thread other([&] {
    peer.Join();
    v1::Frame frame;
    ASSERT_TRUE(peer.link().Read(&frame));
    frame.set_source(1);
    GetParam().spoil(frame);
    PlainPeer::Seal(frame);
    peer.link().Write(frame);
    while (!message.has_abort() && peer.control().Read(&message)) {
    }
  });
  const auto transport = world.Connect(0);
  ASSERT_TRUE(transport.ok()) << transport.status();
  GroupCommunicator group = AllRanks(**transport);
  std::vector<float> data = {1, 2};
  const absl::Status status =
      group.AllReduce(data, absl::MakeSpan(data), {}, 99, Soon());
  other.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().text));
  ASSERT_TRUE(message.has_abort());
  EXPECT_EQ(message.abort().suspect(), 1u);
}

TEST(LinkCollectivesTest, DifferentRootsOfABroadcastAreCalledRoots) {
  GrpcWorld world(3);
  world.RunConnected([&](Transport& transport) {
    GroupCommunicator group =
        AllRanks(transport, AlgorithmTable::Only(Algorithm::kRing));
    std::vector<float> data(10);
    const bool odd = transport.rank() == 2;
    const absl::Status status =
        group.Broadcast(absl::MakeSpan(data), odd ? 1 : 0, {}, Soon());
    if (odd) {
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("ranks chose different roots"));
    }
  });
}

}  // namespace
}  // namespace ringfleet::cluster
