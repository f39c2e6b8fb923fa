// SPDX-License-Identifier: Apache-2.0
#include "cluster/reduce_scatter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "cluster/group_communicator.h"
#include "tests/testing/collective_cases.h"
#include "tests/testing/fake_transport.h"

namespace ringfleet::cluster {
namespace {

using ::ringfleet::testing::FakeNetwork;
using ::ringfleet::testing::RankValues;
using ::ringfleet::testing::UnevenOffsets;
using ::ringfleet::testing::WholeWorld;
using ::testing::Each;

Deadline Soon() { return Deadline::After(absl::Seconds(60)); }

// Element i of a segment, summed around the ring from the rank after its owner.
float RingOrderSum(const std::vector<std::vector<float>>& values, int owner,
                   size_t i) {
  const int ranks = static_cast<int>(values.size());
  float sum = values[(owner + 1) % ranks][i];
  for (int hop = 2; hop <= ranks; ++hop) {
    sum += values[(owner + hop) % ranks][i];
  }
  return sum;
}

TEST(ReduceScatterTest, OwnSegmentIsTheSumInRingOrder) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (const Wire wire : {Wire::kF32, Wire::kBf16}) {
      for (const size_t size : {0, 1, 2, 3, 7, 64, 1000, 7168, 300000}) {
        if (size > 10000 && ranks > 5) continue;
        std::vector<std::vector<float>> values;
        for (int rank = 0; rank < ranks; ++rank) {
          values.push_back(RankValues(rank, size));
        }
        const std::vector<uint64_t> offsets = UnevenOffsets(ranks, size);
        FakeNetwork network(ranks, /*piece_bytes=*/1001);
        const auto statuses =
            network.RunOnEveryRank([&](Transport& transport) -> absl::Status {
              GroupCommunicator group(&transport, WholeWorld(ranks));
              std::vector<float> data = values[group.rank()];
              const absl::Status status = group.ReduceScatter(
                  absl::MakeSpan(data), offsets, wire, Soon());
              if (!status.ok()) return status;
              for (uint64_t i = offsets[group.rank()];
                   i < offsets[group.rank() + 1]; ++i) {
                if (data[i] != RingOrderSum(values, group.rank(), i)) {
                  return absl::InternalError(absl::StrCat("element ", i));
                }
              }
              return absl::OkStatus();
            });
        EXPECT_THAT(statuses, Each(absl::OkStatus()))
            << ranks << " ranks, " << size << " elements";
      }
    }
  }
}

TEST(ReduceScatterTest, GroupsOfOneAxisDoNotMix) {
  // Ranks 0, 2 and ranks 1, 3 are two groups; the third holds all, backwards.
  FakeNetwork network(4);
  const auto statuses =
      network.RunOnEveryRank([&](Transport& transport) -> absl::Status {
        const int parity = transport.rank() % 2;
        GroupCommunicator axis(&transport, {1, {parity, parity + 2}});
        GroupCommunicator all(&transport, {2, {3, 2, 1, 0}});
        std::vector<float> data(2, static_cast<float>(1 << transport.rank()));
        absl::Status status = axis.ReduceScatter(absl::MakeSpan(data),
                                                 {0, 1, 2}, Wire::kF32, Soon());
        if (!status.ok()) return status;
        EXPECT_EQ(data[axis.rank()], parity == 0 ? 5.0f : 10.0f);
        std::vector<float> total(4, static_cast<float>(1 << transport.rank()));
        status = all.ReduceScatter(absl::MakeSpan(total), {0, 1, 2, 3, 4},
                                   Wire::kF32, Soon());
        EXPECT_EQ(total[all.rank()], 15.0f);
        EXPECT_EQ(all.rank(), 3 - transport.rank());
        return status;
      });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

}  // namespace
}  // namespace ringfleet::cluster
