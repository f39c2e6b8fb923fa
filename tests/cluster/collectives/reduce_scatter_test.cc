// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/reduce_scatter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "cluster/collectives/group_communicator.h"
#include "cluster/recording/flight_recorder.h"
#include "tests/testing/collective_cases.h"
#include "tests/testing/fake_transport.h"
#include "tests/testing/soon.h"

namespace ringfleet::cluster {
namespace {

using ::ringfleet::testing::FakeNetwork;
using ::ringfleet::testing::Soon;
using ::testing::Each;

TEST(ReduceScatterTest, GroupsOfOneAxisDoNotMix) {
  // Ranks 0, 2 and ranks 1, 3 are two groups; the third holds all, backwards.
  FakeNetwork network(4);
  const auto statuses =
      network.RunOnEveryRank([&](Transport& transport) -> absl::Status {
        const int parity = transport.rank() % 2;
        GroupCommunicator axis(&transport, {1, {parity, parity + 2}},
                               AlgorithmTable::Default(), nullptr);
        GroupCommunicator all(&transport, {2, {3, 2, 1, 0}},
                              AlgorithmTable::Default(), nullptr);
        std::vector<float> data(2, static_cast<float>(1 << transport.rank()));
        absl::Status status = axis.ReduceScatter(
            absl::MakeSpan(data), absl::MakeSpan(data).subspan(axis.rank(), 1),
            {0, 1, 2}, {}, /*check=*/0, Soon());
        if (!status.ok()) return status;
        EXPECT_EQ(data[axis.rank()], parity == 0 ? 5.0f : 10.0f);
        std::vector<float> total(4, static_cast<float>(1 << transport.rank()));
        status = all.ReduceScatter(absl::MakeSpan(total),
                                   absl::MakeSpan(total).subspan(all.rank(), 1),
                                   {0, 1, 2, 3, 4}, {}, /*check=*/0, Soon());
        EXPECT_EQ(total[all.rank()], 15.0f);
        EXPECT_EQ(all.rank(), 3 - transport.rank());
        return status;
      });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

TEST(ReduceScatterTest, RanksThatDisagreeAreFoundOut) {
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kRing}) {
    FakeNetwork network(3);
    const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
      GroupCommunicator group(&transport, WorldGroup(3),
                              AlgorithmTable::Only(algorithm), nullptr);
      std::vector<float> data(6);
      return group.ReduceScatter(absl::MakeSpan(data),
                                 absl::MakeSpan(data).subspan(
                                     2 * static_cast<size_t>(group.rank()), 2),
                                 {0, 2, 4, 6}, {},
                                 /*check=*/group.rank() == 1 ? 8 : 7, Soon());
    });
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()),
                  ::testing::HasSubstr("ranks chose different shares or "
                                       "experts"));
    }
  }
}

// The record of the one before stays as it is.
TEST(ReduceScatterTest, RefusedArgumentsAreNotRecordedAsAnOperation) {
  FakeNetwork network(1);
  network.RunOnEveryRank([&](Transport& transport) {
    FlightRecorder recorder;
    GroupCommunicator group(&transport, WorldGroup(1),
                            AlgorithmTable::Default(), &recorder);
    EXPECT_EQ(group.Barrier(Soon()), absl::OkStatus());
    std::vector<float> data(2);
    const auto span = absl::MakeSpan(data);
    EXPECT_EQ(group
                  .ReduceScatter(span, span.subspan(0, 1), {0, 9}, {},
                                 /*check=*/0, Soon())
                  .code(),
              absl::StatusCode::kInvalidArgument);
    const std::vector<FlightRecord> records = recorder.Records();
    EXPECT_EQ(records.size(), 1u);
    EXPECT_EQ(records.back().state, FlightOperation::State::kDone);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace ringfleet::cluster
