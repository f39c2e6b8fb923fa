// SPDX-License-Identifier: Apache-2.0
#include "cluster/all_gather.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cluster/group_communicator.h"
#include "tests/testing/collective_cases.h"
#include "tests/testing/fake_transport.h"

namespace ringfleet::cluster {
namespace {

using ::ringfleet::testing::FakeNetwork;
using ::ringfleet::testing::UnevenOffsets;
using ::ringfleet::testing::WholeWorld;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

Deadline Soon() { return Deadline::After(absl::Seconds(60)); }

char ByteAt(size_t i) { return static_cast<char>(i * 7 + i / 251); }

TEST(AllGatherTest, EveryRankEndsWithAllSegments) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    FakeNetwork network(ranks, /*piece_bytes=*/1001);
    const auto statuses =
        network.RunOnEveryRank([&](Transport& transport) -> absl::Status {
          GroupCommunicator group(&transport, WholeWorld(ranks));
          for (const size_t size : {0, 1, 2, 3, 7, 64, 1000, 7168, 300000}) {
            const std::vector<uint64_t> offsets = UnevenOffsets(ranks, size);
            std::string data(size, '?');
            for (uint64_t i = offsets[group.rank()];
                 i < offsets[group.rank() + 1]; ++i) {
              data[i] = ByteAt(i);
            }
            const absl::Status status =
                group.AllGather(absl::MakeSpan(data), offsets, Soon());
            if (!status.ok()) return status;
            for (size_t i = 0; i < size; ++i) {
              EXPECT_EQ(data[i], ByteAt(i)) << i << " of " << size;
              if (data[i] != ByteAt(i)) return absl::InternalError("differs");
            }
          }
          return absl::OkStatus();
        });
    EXPECT_THAT(statuses, Each(absl::OkStatus())) << ranks << " ranks";
  }
}

TEST(AllGatherTest, SegmentsAboveOneFrameAreCut) {
  FakeNetwork network(3);
  const std::vector<uint64_t> offsets = {
      0, kMaxPayloadBytes + 1, kMaxPayloadBytes + 1, 3 * kMaxPayloadBytes};
  const auto statuses =
      network.RunOnEveryRank([&](Transport& transport) -> absl::Status {
        GroupCommunicator group(&transport, WholeWorld(3));
        std::string data(offsets.back(), '?');
        for (uint64_t i = offsets[group.rank()]; i < offsets[group.rank() + 1];
             ++i) {
          data[i] = ByteAt(i);
        }
        const absl::Status status =
            group.AllGather(absl::MakeSpan(data), offsets, Soon());
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
        GroupCommunicator group(&transport, WholeWorld(3));
        std::vector<char> data(3);
        return group.AllGather(absl::MakeSpan(data), {0, 1, 2, 3},
                               Deadline::Infinite());
      });
  EXPECT_THAT(statuses, Each(cause));
}

TEST(AllGatherTest, RanksThatCutSegmentsDifferentlyFail) {
  FakeNetwork network(2);
  const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
    GroupCommunicator group(&transport, WholeWorld(2));
    std::vector<char> data(10);
    const uint64_t border = transport.rank() == 0 ? 5 : 6;
    return group.AllGather(absl::MakeSpan(data), {0, border, 10}, Soon());
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("ranks chose different segments"));
  }
}

TEST(AllGatherTest, ImpossibleOffsetsEndTheEpoch) {
  FakeNetwork network(2);
  const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
    GroupCommunicator group(&transport, WholeWorld(2));
    std::vector<char> data(10);
    const std::vector<uint64_t> bad = {0, 5, 11};
    const std::vector<uint64_t> good = {0, 5, 10};
    return group.AllGather(absl::MakeSpan(data),
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
          GroupCommunicator group(&transport, WholeWorld(ranks));
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
