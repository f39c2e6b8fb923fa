// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/all_reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/collectives/group_communicator.h"
#include "tests/testing/collective_cases.h"
#include "tests/testing/fake_transport.h"
#include "tests/testing/soon.h"

namespace ringfleet::cluster {
namespace {

using ::ringfleet::testing::FakeNetwork;
using ::ringfleet::testing::OutgoingFrame;
using ::ringfleet::testing::RankOrderSum;
using ::ringfleet::testing::RankValues;
using ::ringfleet::testing::Soon;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

absl::Status AllReduceInPlace(GroupCommunicator& group,
                              std::vector<float>& data, Wire wire,
                              uint64_t check, Deadline deadline) {
  return group.AllReduce(data, absl::MakeSpan(data), {wire}, check, deadline);
}

TEST(AllReduceTest, ElementsMayStraddlePiecesAnywhere) {
  for (size_t piece = 1; piece <= 9; ++piece) {
    FakeNetwork network(3, piece);
    for (const Wire wire : {Wire::kF32, Wire::kBf16, Wire::kInt8}) {
      std::vector<std::vector<float>> results(3);
      const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
        GroupCommunicator group(&transport, WorldGroup(3),
                                AlgorithmTable::Default(), nullptr);
        std::vector<float>& data = results[transport.rank()];
        data = RankValues(transport.rank(), 100);
        return AllReduceInPlace(group, data, wire, 0, Soon());
      });
      EXPECT_THAT(statuses, Each(absl::OkStatus()));
      EXPECT_THAT(results, Each(RankOrderSum(3, 100, wire)));
    }
  }
}

TEST(AllReduceTest, NanAndInfinityReachEveryRank) {
  FakeNetwork network(3);
  std::vector<std::vector<float>> results(3);
  const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
    GroupCommunicator group(&transport, WorldGroup(3),
                            AlgorithmTable::Default(), nullptr);
    std::vector<float>& data = results[transport.rank()];
    data = {1, 2, 3};
    if (transport.rank() == 1) data = {NAN, INFINITY, 3};
    return AllReduceInPlace(group, data, Wire::kBf16, 0, Soon());
  });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
  for (const auto& result : results) {
    EXPECT_TRUE(std::isnan(result[0]));
    EXPECT_EQ(result[1], INFINITY);
    EXPECT_EQ(result[2], 9);
  }
}

// What each rank does in the tests below, and the error that must result.
std::vector<absl::Status> RunTwo(
    const std::function<absl::Status(GroupCommunicator&, int)>& body) {
  FakeNetwork network(2);
  return network.RunOnEveryRank([&](Transport& transport) {
    GroupCommunicator group(&transport, WorldGroup(2),
                            AlgorithmTable::Default(), nullptr);
    return body(group, transport.rank());
  });
}

TEST(DesyncTest, AnotherOperationIsNamedOnBothSides) {
  const auto statuses = RunTwo([](GroupCommunicator& group, int rank) {
    if (rank == 0) {
      std::vector<float> data(28);
      return AllReduceInPlace(group, data, Wire::kF32, 0, Soon());
    }
    std::vector<char> data(40);
    return group.AllGather(absl::MakeConstSpan(data).subspan(20),
                           absl::MakeSpan(data), {0, 20, 40}, Soon());
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("all_reduce"), HasSubstr("#1 of 28 elements"),
                      HasSubstr("all_gather"), HasSubstr("#1 of 40 elements")));
  }
}

TEST(DesyncTest, AnotherCountIsAnError) {
  const auto statuses = RunTwo([](GroupCommunicator& group, int rank) {
    std::vector<float> data(rank == 0 ? 28 : 29);
    return AllReduceInPlace(group, data, Wire::kF32, 0, Soon());
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("#1 of 28 elements"),
                                        HasSubstr("#1 of 29 elements")));
  }
}

TEST(DesyncTest, AnotherWireIsAnError) {
  const auto statuses = RunTwo([](GroupCommunicator& group, int rank) {
    std::vector<float> data(28);
    return AllReduceInPlace(group, data, rank == 0 ? Wire::kF32 : Wire::kBf16,
                            0, Soon());
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  }
}

TEST(DesyncTest, ASkippedOperationIsAnError) {
  FakeNetwork network(2);
  const Group group = WorldGroup(2);
  const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
    SendArena arena;
    std::vector<float> data(28);
    const uint64_t sequence = transport.rank() == 0 ? 17 : 18;
    Exchange exchange(&transport, &group, transport.rank(),
                      {.sequence = sequence, .count = 28},
                      data.size() * sizeof(float), Soon(), &arena, nullptr,
                      nullptr);
    const absl::Status status = OneShotAllReduce(
        exchange, WireFormat(Wire::kF32, 0), data, absl::MakeSpan(data));
    transport.Abort(status);
    return status;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("#17"), HasSubstr("#18")));
  }
}

TEST(DesyncTest, OtherExpertsAreAnError) {
  const auto statuses = RunTwo([](GroupCommunicator& group, int rank) {
    std::vector<float> data(28);
    return AllReduceInPlace(group, data, Wire::kF32,
                            /*check=*/0x1000 + rank, Soon());
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("ranks chose different experts"),
                      HasSubstr("1000"), HasSubstr("1001")));
  }
}

TEST(AllReduceTest, ErrorsStick) {
  const auto statuses = RunTwo([](GroupCommunicator& group, int rank) {
    std::vector<float> data(28);
    const absl::Status first = AllReduceInPlace(group, data, Wire::kF32,
                                                /*check=*/rank, Soon());
    const absl::Status second = group.Barrier(Soon());
    EXPECT_EQ(first, second);
    return second;
  });
  EXPECT_EQ(statuses[0], statuses[1]);
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kFailedPrecondition);
}

// Every frame of every step is lost once: whoever waits for it reports the
// deadline, or the frame behind it as out of step, and everybody else is
// released.
TEST(AllReduceTest, ALostFrameAnywhereFailsInTime) {
  for (const size_t size : {size_t{100}, size_t{30000}}) {
    for (int lost = 0;; ++lost) {
      FakeNetwork network(3);
      int sent = 0;
      network.set_script([&](OutgoingFrame&) { return sent++ != lost; });
      const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
        GroupCommunicator group(&transport, WorldGroup(3),
                                AlgorithmTable::Default(), nullptr);
        std::vector<float> data(size);
        return AllReduceInPlace(group, data, Wire::kF32, 0,
                                Deadline::After(absl::Milliseconds(30)));
      });
      if (sent <= lost) break;  // Fewer frames than that: nothing was lost.
      int failed = 0;
      for (const absl::Status& status : statuses) {
        if (status.ok()) continue;  // It had all it needed.
        ++failed;
        EXPECT_TRUE(absl::IsDeadlineExceeded(status) ||
                    absl::IsFailedPrecondition(status))
            << status;
        EXPECT_THAT(status.message(),
                    AllOf(HasSubstr("rank"), HasSubstr("all_reduce")));
      }
      EXPECT_GE(failed, 1) << "frame " << lost;
    }
  }
}

TEST(AllReduceTest, ACorruptFrameIsDataLossOnEveryRank) {
  FakeNetwork network(3);
  network.set_script([](OutgoingFrame& frame) {
    if (frame.from == 1 && frame.to == 2) frame.header.crc32c ^= 1;
    return true;
  });
  const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
    GroupCommunicator group(&transport, WorldGroup(3),
                            AlgorithmTable::Default(), nullptr);
    std::vector<float> data(100);
    const absl::Status status =
        AllReduceInPlace(group, data, Wire::kF32, 0, Soon());
    return status.ok() ? group.Barrier(Soon()) : status;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr("rank 1"));
  }
}

}  // namespace
}  // namespace ringfleet::cluster
