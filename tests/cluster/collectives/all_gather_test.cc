// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/all_gather.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cluster/collectives/group_communicator.h"
#include "tests/testing/collective_cases.h"
#include "tests/testing/fake_transport.h"
#include "tests/testing/soon.h"

namespace ringfleet::cluster {
namespace {

using ::ringfleet::testing::FakeNetwork;
using ::ringfleet::testing::Soon;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

absl::Status GatherInPlace(GroupCommunicator& group, absl::Span<char> data,
                           const std::vector<uint64_t>& offsets,
                           Deadline deadline) {
  const uint64_t begin = offsets[group.rank()];
  return group.AllGather(data.subspan(begin, offsets[group.rank() + 1] - begin),
                         data, offsets, deadline);
}

char ByteAt(size_t i) { return static_cast<char>(i * 7 + i / 251); }

TEST(AllGatherTest, SharesAboveOneFrameAreCut) {
  FakeNetwork network(3);
  const std::vector<uint64_t> offsets = {
      0, kMaxFrameBytes + 1, kMaxFrameBytes + 1, 3 * kMaxFrameBytes};
  const auto statuses =
      network.RunOnEveryRank([&](Transport& transport) -> absl::Status {
        GroupCommunicator group(&transport, WorldGroup(3),
                                AlgorithmTable::Default(), nullptr);
        std::string data(offsets.back(), '?');
        for (uint64_t i = offsets[group.rank()]; i < offsets[group.rank() + 1];
             ++i) {
          data[i] = ByteAt(i);
        }
        const absl::Status status =
            GatherInPlace(group, absl::MakeSpan(data), offsets, Soon());
        for (size_t i = 0; i < data.size(); ++i) {
          if (data[i] != ByteAt(i)) return absl::InternalError("differs");
        }
        return status;
      });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

// Rank 2 never joins. Its peers would wait for the whole deadline; the abort
// must release them at once, with the status that caused it.
TEST(AllGatherTest, AbortReleasesEveryWaitingRank) {
  FakeNetwork network(3);
  const absl::Status cause = absl::UnavailableError("rank 2: lease expired");
  const auto statuses =
      network.RunOnEveryRank([&](Transport& transport) -> absl::Status {
        if (transport.rank() == 2) {
          transport.Abort(cause);
          return cause;
        }
        GroupCommunicator group(&transport, WorldGroup(3),
                                AlgorithmTable::Default(), nullptr);
        std::vector<char> data(3);
        return GatherInPlace(group, absl::MakeSpan(data), {0, 1, 2, 3},
                             Deadline::Infinite());
      });
  EXPECT_THAT(statuses, Each(cause));
}

TEST(AllGatherTest, RanksThatCutSharesDifferentlyFail) {
  FakeNetwork network(2);
  const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
    GroupCommunicator group(&transport, WorldGroup(2),
                            AlgorithmTable::Default(), nullptr);
    std::vector<char> data(10);
    const uint64_t border = transport.rank() == 0 ? 5 : 6;
    return GatherInPlace(group, absl::MakeSpan(data), {0, border, 10}, Soon());
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("ranks chose different shares"));
  }
}

TEST(AllGatherTest, ImpossibleOffsetsEndTheEpoch) {
  FakeNetwork network(2);
  const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
    GroupCommunicator group(&transport, WorldGroup(2),
                            AlgorithmTable::Default(), nullptr);
    std::vector<char> data(10);
    const std::vector<uint64_t> bad = {0, 5, 11};
    const std::vector<uint64_t> good = {0, 5, 10};
    return GatherInPlace(group, absl::MakeSpan(data),
                         transport.rank() == 0 ? bad : good, Soon());
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
}

TEST(BarrierTest, NobodyPassesBeforeTheLastHasEntered) {
  for (const int ranks : {1, 2, 5, 16}) {
    FakeNetwork network(ranks);
    std::atomic<int> entered{0};
    const auto statuses =
        network.RunOnEveryRank([&](Transport& transport) -> absl::Status {
          GroupCommunicator group(&transport, WorldGroup(ranks),
                                  AlgorithmTable::Default(), nullptr);
          for (int round = 1; round <= 20; ++round) {
            ++entered;
            const absl::Status status = group.Barrier(Soon());
            if (!status.ok()) return status;
            if (entered < round * ranks) return absl::InternalError("early");
          }
          return absl::OkStatus();
        });
    EXPECT_THAT(statuses, Each(absl::OkStatus())) << ranks;
  }
}

}  // namespace
}  // namespace ringfleet::cluster
