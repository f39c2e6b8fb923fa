// SPDX-License-Identifier: Apache-2.0
#include "cluster/all_reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/group_communicator.h"
#include "tests/testing/collective_cases.h"
#include "tests/testing/fake_transport.h"

namespace ringfleet::cluster {
namespace {

using ::ringfleet::testing::ExactSum;
using ::ringfleet::testing::FakeNetwork;
using ::ringfleet::testing::RankOrderSum;
using ::ringfleet::testing::RankValues;
using ::ringfleet::testing::SumTolerance;
using ::ringfleet::testing::WholeWorld;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr size_t kSizes[] = {0, 1, 2, 3, 7, 64, 1000, 7168, 300000};

Deadline Soon() { return Deadline::After(absl::Seconds(60)); }

using AllReduceFunction = absl::Status (*)(Exchange&, absl::Span<float>, Wire,
                                           ReduceScratch&);

// The results by rank of one all-reduce over RankValues.
std::vector<std::vector<float>> Reduce(AllReduceFunction algorithm, int ranks,
                                       size_t size, Wire wire) {
  FakeNetwork network(ranks, /*piece_bytes=*/1001);
  std::vector<std::vector<float>> results(ranks);
  const Group group = WholeWorld(ranks);
  const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
    ReduceScratch scratch;
    std::vector<float>& data = results[transport.rank()];
    data = RankValues(transport.rank(), size);
    Exchange exchange(&transport, &group, transport.rank(),
                      {.sequence = 1, .count = size}, Soon());
    return algorithm(exchange, absl::MakeSpan(data), wire, scratch);
  });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
  return results;
}

TEST(AllReduceTest, OneShotIsTheRankOrderSumBitwise) {
  for (int ranks = 2; ranks <= 16; ++ranks) {
    for (const Wire wire : {Wire::kF32, Wire::kBf16}) {
      for (const size_t size : kSizes) {
        if (size > 10000 && ranks > 5) continue;
        EXPECT_THAT(Reduce(&OneShotAllReduce, ranks, size, wire),
                    Each(RankOrderSum(ranks, size, wire)))
            << ranks << " ranks, " << size << " elements";
      }
    }
  }
}

TEST(AllReduceTest, RingAgreesOnAllRanksAndIsCloseToTheExactSum) {
  for (int ranks = 2; ranks <= 16; ++ranks) {
    for (const Wire wire : {Wire::kF32, Wire::kBf16}) {
      for (const size_t size : kSizes) {
        if (size > 10000 && ranks > 5) continue;
        const auto results = Reduce(&RingAllReduce, ranks, size, wire);
        for (const auto& result : results) ASSERT_EQ(result, results[0]);
        const std::vector<double> exact = ExactSum(ranks, size);
        const std::vector<float> tolerance = SumTolerance(ranks, size, wire);
        for (size_t i = 0; i < size; ++i) {
          ASSERT_NEAR(results[0][i], exact[i], tolerance[i]) << i;
        }
      }
    }
  }
}

TEST(AllReduceTest, ElementsMayStraddlePiecesAnywhere) {
  for (size_t piece = 1; piece <= 9; ++piece) {
    FakeNetwork network(3, piece);
    for (const Wire wire : {Wire::kF32, Wire::kBf16}) {
      std::vector<std::vector<float>> results(3);
      const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
        GroupCommunicator group(&transport, WholeWorld(3));
        std::vector<float>& data = results[transport.rank()];
        data = RankValues(transport.rank(), 100);
        return group.AllReduce(absl::MakeSpan(data), wire, 0, Soon());
      });
      EXPECT_THAT(statuses, Each(absl::OkStatus()));
      EXPECT_THAT(results, Each(RankOrderSum(3, 100, wire)));
    }
  }
}

TEST(AllReduceTest, AlgorithmDependsOnBytesAndRanksOnly) {
  EXPECT_EQ(ChooseAlgorithm(Operation::kAllReduce, 64 << 10, 8),
            Algorithm::kOneShot);
  EXPECT_EQ(ChooseAlgorithm(Operation::kAllReduce, (64 << 10) + 1, 8),
            Algorithm::kRing);
  EXPECT_EQ(ChooseAlgorithm(Operation::kAllReduce, 1 << 20, 2),
            Algorithm::kOneShot);
}

TEST(AllReduceTest, NanAndInfinityReachEveryRank) {
  FakeNetwork network(3);
  std::vector<std::vector<float>> results(3);
  const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
    GroupCommunicator group(&transport, WholeWorld(3));
    std::vector<float>& data = results[transport.rank()];
    data = {1, 2, 3};
    if (transport.rank() == 1) data = {NAN, INFINITY, 3};
    return group.AllReduce(absl::MakeSpan(data), Wire::kBf16, 0, Soon());
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
    GroupCommunicator group(&transport, WholeWorld(2));
    return body(group, transport.rank());
  });
}

TEST(DesyncTest, AnotherOperationIsNamedOnBothSides) {
  const auto statuses = RunTwo([](GroupCommunicator& group, int rank) {
    if (rank == 0) {
      std::vector<float> data(28);
      return group.AllReduce(absl::MakeSpan(data), Wire::kF32, 0, Soon());
    }
    std::vector<char> data(40);
    return group.AllGather(absl::MakeSpan(data), {0, 20, 40}, Soon());
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
    return group.AllReduce(absl::MakeSpan(data), Wire::kF32, 0, Soon());
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
    return group.AllReduce(absl::MakeSpan(data),
                           rank == 0 ? Wire::kF32 : Wire::kBf16, 0, Soon());
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  }
}

TEST(DesyncTest, ASkippedOperationIsAnError) {
  FakeNetwork network(2);
  const Group group = WholeWorld(2);
  const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
    ReduceScratch scratch;
    std::vector<float> data(28);
    const uint64_t sequence = transport.rank() == 0 ? 17 : 18;
    Exchange exchange(&transport, &group, transport.rank(),
                      {.sequence = sequence, .count = 28}, Soon());
    const absl::Status status =
        OneShotAllReduce(exchange, absl::MakeSpan(data), Wire::kF32, scratch);
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
    return group.AllReduce(absl::MakeSpan(data), Wire::kF32,
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
    const absl::Status first = group.AllReduce(absl::MakeSpan(data), Wire::kF32,
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
      network.set_tamper(
          [&](int, int, FrameHeader&) { return sent++ != lost; });
      const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
        GroupCommunicator group(&transport, WholeWorld(3));
        std::vector<float> data(size);
        return group.AllReduce(absl::MakeSpan(data), Wire::kF32, 0,
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
  network.set_tamper([](int from, int to, FrameHeader& header) {
    if (from == 1 && to == 2) header.crc32c ^= 1;
    return true;
  });
  const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
    GroupCommunicator group(&transport, WholeWorld(3));
    std::vector<float> data(100);
    const absl::Status status =
        group.AllReduce(absl::MakeSpan(data), Wire::kF32, 0, Soon());
    return status.ok() ? group.Barrier(Soon()) : status;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr("rank 1"));
  }
}

}  // namespace
}  // namespace ringfleet::cluster
