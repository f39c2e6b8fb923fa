// SPDX-License-Identifier: Apache-2.0
#include "cluster/reduce_scatter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "cluster/group_communicator.h"
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
            {0, 1, 2}, {}, Soon());
        if (!status.ok()) return status;
        EXPECT_EQ(data[axis.rank()], parity == 0 ? 5.0f : 10.0f);
        std::vector<float> total(4, static_cast<float>(1 << transport.rank()));
        status = all.ReduceScatter(absl::MakeSpan(total),
                                   absl::MakeSpan(total).subspan(all.rank(), 1),
                                   {0, 1, 2, 3, 4}, {}, Soon());
        EXPECT_EQ(total[all.rank()], 15.0f);
        EXPECT_EQ(all.rank(), 3 - transport.rank());
        return status;
      });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

}  // namespace
}  // namespace ringfleet::cluster
