// SPDX-License-Identifier: Apache-2.0
// A collective allocates nothing once its buffers have grown: a decode step
// makes hundreds of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cluster/collectives/frame_cuts.h"
#include "cluster/collectives/group_communicator.h"
#include "cluster/process/status_macros.h"
#include "tests/testing/collective_cases.h"
#include "tests/testing/count_allocations.h"
#include "tests/testing/fake_transport.h"

namespace ringfleet::cluster {
namespace {

using ::ringfleet::testing::AllocationCount;
using ::ringfleet::testing::CountsAllocations;
using ::ringfleet::testing::FakeNetwork;
using ::ringfleet::testing::RankValues;
using ::ringfleet::testing::UnevenOffsets;
using ::testing::Each;

class AllocationTest : public ::testing::TestWithParam<Algorithm> {};

// All operations on one rank, on memory that exists.
struct Buffers {
  explicit Buffers(int ranks, int rank)
      : offsets(UnevenOffsets(ranks, kCount, 128)),
        input(RankValues(rank, kCount)),
        output(kCount) {
    for (int r = 0; r <= ranks; ++r) parts.push_back(kCount / ranks * r);
  }
  static constexpr size_t kCount = 2 * kMaxFrameElements + 5000;
  std::vector<uint64_t> offsets;
  std::vector<uint64_t> parts;
  std::vector<float> input;
  std::vector<float> output;
};

absl::Status RunAll(GroupCommunicator& group, Buffers& b) {
  const Deadline deadline = Deadline::After(absl::Seconds(60));
  const size_t begin = b.offsets[group.rank()];
  const size_t size = b.offsets[group.rank() + 1] - begin;
  const auto input = absl::MakeSpan(b.input);
  const auto output = absl::MakeSpan(b.output);
  for (const Wire wire : {Wire::kF32, Wire::kBf16, Wire::kInt8}) {
    const Encoding encoding{wire, 0};
    RF_RETURN_IF_ERROR(group.AllReduce(input, output, encoding, 0, deadline));
    RF_RETURN_IF_ERROR(group.AllReduce(output, output, encoding, 0, deadline));
    RF_RETURN_IF_ERROR(group.AllGather(input.subspan(begin, size), output,
                                       b.offsets, encoding, deadline));
    RF_RETURN_IF_ERROR(group.ReduceScatter(input, output.subspan(0, size),
                                           b.offsets, encoding, /*check=*/0,
                                           deadline));
    RF_RETURN_IF_ERROR(
        group.AllToAll(input, b.parts, output, b.parts, encoding, deadline));
    RF_RETURN_IF_ERROR(group.Broadcast(output, 1, encoding, deadline));
  }
  return group.Barrier(deadline);
}

TEST_P(AllocationTest, WarmOperationsAllocateNothing) {
  if (!CountsAllocations()) {
    GTEST_SKIP() << "a sanitizer has the allocator";
  }
  constexpr int kRanks = 4;
  FakeNetwork network(kRanks);
  FlightRecorder recorders[kRanks];
  TraceRecorder traces[kRanks];
  // How far ranks run ahead of each other, and so how long queues get, differs
  // from round to round; what an operation allocates shows in all of them.
  constexpr int kRounds = 20;
  size_t least = ~size_t{0};
  size_t least_traced = ~size_t{0};
  const auto statuses =
      network.RunOnEveryRank([&](Transport& transport) -> absl::Status {
        GroupCommunicator group(
            &transport, WorldGroup(kRanks), AlgorithmTable::Only(GetParam()),
            &recorders[transport.rank()], &traces[transport.rank()]);
        Buffers buffers(kRanks, transport.rank());
        for (int round = 0; round < 2 * kRounds; ++round) {
          if (round == kRounds) {
            RF_RETURN_IF_ERROR(traces[transport.rank()].Start(1000));
          }
          const size_t before = AllocationCount();
          RF_RETURN_IF_ERROR(group.Barrier(Deadline::Infinite()));
          RF_RETURN_IF_ERROR(RunAll(group, buffers));
          RF_RETURN_IF_ERROR(group.Barrier(Deadline::Infinite()));
          if (group.rank() == 0) {
            size_t& fewest = round < kRounds ? least : least_traced;
            fewest = std::min(fewest, AllocationCount() - before);
          }
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
  EXPECT_EQ(least, 0u);
  EXPECT_EQ(least_traced, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, AllocationTest,
                         ::testing::Values(Algorithm::kOneShot,
                                           Algorithm::kTwoShot,
                                           Algorithm::kRing),
                         [](const auto& info) {
                           return std::string(AlgorithmText(info.param));
                         });

}  // namespace
}  // namespace ringfleet::cluster
