// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/epoch_failures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "cluster/process/status.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class EpochFailuresTest : public ::testing::Test {
 protected:
  std::set<int> down_;
  EpochFailures failures_{
      [this](int rank) { return down_.find(rank) != down_.end(); }};
};

TEST_F(EpochFailuresTest, AnErrorOfItsOwnExplainsMoreThanEchoes) {
  EXPECT_EQ(failures_.Best(), nullptr);
  failures_.Add({.rank = 0, .status = absl::AbortedError("rank 1 gave up")});
  EXPECT_EQ(failures_.Best()->rank, 0);
  failures_.Add({.rank = 2, .status = absl::UnavailableError("no answer")});
  EXPECT_EQ(failures_.Best()->rank, 2);
  failures_.Add({.rank = 1, .status = absl::InternalError("not a number")});
  EXPECT_EQ(failures_.Best()->rank, 1);
  EXPECT_FALSE(failures_.IsLoss(*failures_.Best()));
  EXPECT_EQ(failures_.size(), 3u);
}

TEST_F(EpochFailuresTest, AStoppingWorkerExplainsMoreThanUnavailablePeers) {
  failures_.Add({.rank = 0, .status = absl::UnavailableError("stopped")});
  failures_.Add({.rank = 1,
                 .status = absl::UnavailableError("stopped"),
                 .stopping = true});
  EXPECT_EQ(failures_.Best()->rank, 1);
}

TEST_F(EpochFailuresTest, ALostProcessExplainsMost) {
  failures_.Add({.rank = 0, .status = absl::InternalError("wrong")});
  failures_.Add({.rank = 1, .status = absl::UnavailableError("reset")});
  EXPECT_EQ(failures_.Best()->rank, 0);
  down_.insert(1);
  EXPECT_EQ(failures_.Best()->rank, 1);
  EXPECT_TRUE(failures_.IsLoss(*failures_.Best()));
}

TEST_F(EpochFailuresTest, AnotherCoordinatorExplainsAllAndTakesTheWorkerAway) {
  failures_.Add(
      {.rank = 0, .status = absl::UnavailableError("gone"), .lost = true});
  failures_.Add({.rank = 1, .status = cluster::SupersededError("replaced")});
  EXPECT_EQ(failures_.Best()->rank, 1);
  EXPECT_TRUE(failures_.IsLoss(*failures_.Best()));
  failures_.Add(
      {.rank = 1, .status = absl::UnavailableError("gone"), .lost = true});
  failures_.Add({.rank = 0, .status = cluster::SupersededError("replaced")});
  EXPECT_TRUE(cluster::IsSuperseded(failures_.Best()->status));
  EXPECT_EQ(failures_.Best()->rank, 0);
  failures_.Settle();
  EXPECT_THAT(failures_.LostRanks(), ElementsAre(0, 1));
}

TEST_F(EpochFailuresTest, ARankKeepsItsFirstFailureUnlessItIsLost) {
  failures_.Add({.rank = 0, .status = absl::InternalError("first")});
  failures_.Add({.rank = 0, .status = absl::DataLossError("second")});
  EXPECT_EQ(failures_.Best()->status, absl::InternalError("first"));
  failures_.Add(
      {.rank = 0, .status = absl::UnavailableError("gone"), .lost = true});
  EXPECT_EQ(failures_.Best()->status, absl::UnavailableError("gone"));
  EXPECT_EQ(failures_.size(), 1u);
}

TEST_F(EpochFailuresTest, ConnectionsThatGoDownAfterTheVerdictAreNotLosses) {
  failures_.Add({.rank = 0, .status = absl::UnavailableError("reset")});
  failures_.Add({.rank = 1, .status = absl::UnavailableError("reset")});
  EXPECT_THAT(failures_.LostRanks(), IsEmpty());
  down_.insert(1);
  failures_.Settle();
  down_.insert(0);
  EXPECT_THAT(failures_.LostRanks(), ElementsAre(1));
}

}  // namespace
}  // namespace ringfleet::coordinator
