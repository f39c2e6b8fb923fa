// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/first_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "coordinator/fleet/fleet_epoch.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Lists = std::vector<std::vector<int32_t>>;

// Four experts in layer 1 of two, over two coordinates of two ranks each.
class FirstLayoutTest : public ::testing::Test {
 protected:
  FirstLayoutTest() {
    options_.mesh = {1, 2, 2};
    options_.settings.set_model("/models/r1");
    options_.settings.set_dtype(v1::DTYPE_INT8);
    options_.experts.layers = {1};
    options_.experts.num_layers = 2;
    options_.experts.num_experts = 4;
    options_.experts.num_coordinates = 2;
    options_.layout = cluster::ExpertLayout(2, 4, 2);
    EXPECT_TRUE(options_.layout.SetSpeeds({2, 1}).ok());
    for (int rank = 0; rank < 4; ++rank) {
      Member& member = members_.emplace_back();
      member.rank = rank;
      member.last_epoch = 7;
    }
  }

  // The rank holds its part of `lists`.
  void Hold(int rank, const Lists& lists, const cluster::MeshShape& mesh,
            int held_as) {
    FleetOptions then = options_;
    then.mesh = mesh;
    then.layout = cluster::ExpertLayout(2, 4, mesh.num_coordinates());
    ASSERT_TRUE(then.layout.SetLayer(1, lists).ok());
    auto held = std::make_shared<v1::HeldShard>();
    *held->mutable_request() = MakeLoadRequest(then, members_, held_as);
    members_[rank].held = std::move(held);
  }
  void Hold(int rank, const Lists& lists) {
    Hold(rank, lists, options_.mesh, rank);
  }

  Lists Chosen() {
    const FirstLayout chosen = ChooseFirstLayout(options_, members_);
    why_not_ = chosen.why_not;
    EXPECT_EQ(chosen.layout.slowness()[1], 2.0);
    EXPECT_EQ(chosen.layout.num_layers(), 2);
    Lists lists;
    for (int i = 0; i < 2; ++i) {
      const auto experts = chosen.layout.Held(1, i);
      lists.emplace_back(experts.begin(), experts.end());
    }
    return lists;
  }

  const Lists begin_ = {{0, 1}, {2, 3}};
  const Lists moved_ = {{0, 3}, {1, 2}};
  FleetOptions options_;
  std::vector<Member> members_;
  std::string why_not_;
};

TEST_F(FirstLayoutTest, ExpertsStayWhereWorkersHoldThem) {
  EXPECT_EQ(Chosen(), begin_);
  for (int rank = 0; rank < 4; ++rank) Hold(rank, moved_);
  EXPECT_EQ(Chosen(), moved_);
  EXPECT_EQ(why_not_, "");
}

TEST_F(FirstLayoutTest, OneWorkerIsEnoughToKnowAllExperts) {
  Hold(2, moved_);
  EXPECT_EQ(Chosen(), moved_);
}

TEST_F(FirstLayoutTest, ALayoutInWhichMostKeepTheirsWins) {
  for (int rank = 0; rank < 3; ++rank) Hold(rank, moved_);
  Hold(3, begin_);
  members_[3].last_epoch = 8;
  EXPECT_EQ(Chosen(), moved_);
}

// The coordinator died in the middle of a move: expert 3 or expert 1 is nowhere
// unless one coordinate loads.
TEST_F(FirstLayoutTest, HalfOfAMoveFollowsTheLatestEpoch) {
  for (int rank = 0; rank < 2; ++rank) Hold(rank, moved_);
  for (int rank = 2; rank < 4; ++rank) Hold(rank, begin_);
  members_[0].last_epoch = 8;
  EXPECT_EQ(Chosen(), moved_);
  members_[3].last_epoch = 9;
  EXPECT_EQ(Chosen(), begin_);
}

TEST_F(FirstLayoutTest, CopiesMakeHalvesFitTogether) {
  for (int rank = 0; rank < 2; ++rank) Hold(rank, {{0, 1, 2}, {1, 2, 3}});
  for (int rank = 2; rank < 4; ++rank) Hold(rank, {{0, 1}, {0, 2, 3}});
  EXPECT_EQ(Chosen(), (Lists{{0, 1, 2}, {0, 2, 3}}));
}

// The second group alone served before, as ranks 0 and 1 of a smaller mesh.
TEST_F(FirstLayoutTest, SurvivorsOfANarrowedFleetKeepTheirs) {
  options_.mesh = {2, 1, 2};
  Hold(2, {{0, 1, 2, 3}}, {1, 1, 2}, 0);
  Hold(3, {{0, 1, 2, 3}}, {1, 1, 2}, 1);
  EXPECT_EQ(Chosen(), (Lists{{0, 1}, {0, 1, 2, 3}}));
}

TEST_F(FirstLayoutTest, WeightsOfOtherSettingsDoNotCount) {
  for (int rank = 0; rank < 4; ++rank) Hold(rank, moved_);
  options_.settings.set_dtype(v1::DTYPE_BF16);
  EXPECT_EQ(Chosen(), begin_);
  EXPECT_EQ(why_not_, "");
  options_.settings.set_dtype(v1::DTYPE_INT8);
  options_.mesh = {1, 2, 1};
  members_.resize(2);
  EXPECT_EQ(Chosen(), begin_);
}

TEST_F(FirstLayoutTest, ReportsThatMakeNoSenseDoNotCount) {
  for (int rank = 0; rank < 4; ++rank) {
    Hold(rank, moved_);
    auto held = std::make_shared<v1::HeldShard>(*members_[rank].held);
    v1::ParallelLayout* layout = held->mutable_request()->mutable_layout();
    if (rank == 0) layout->set_rank(99);
    if (rank == 1) layout->mutable_mesh()->set_data(~0u);
    if (rank == 2) {
      layout->mutable_experts()->mutable_layers(0)->set_layer(77);
    }
    if (rank == 3) {
      layout->mutable_experts()->mutable_layers(0)->clear_coordinates();
    }
    members_[rank].held = std::move(held);
  }
  EXPECT_EQ(Chosen(), begin_);
}

TEST_F(FirstLayoutTest, SettingsMayWantOtherExperts) {
  for (int rank = 0; rank < 4; ++rank) Hold(rank, {{0, 1, 3}, {1, 2, 3}});
  options_.settings.mutable_experts()->set_slots(6);
  EXPECT_EQ(Chosen(), (Lists{{0, 1, 3}, {1, 2, 3}}));
  options_.settings.mutable_experts()->set_slots(4);
  EXPECT_EQ(Chosen(), begin_);
  EXPECT_EQ(why_not_, "expert slots 4, workers hold 6 in layer 1");
  options_.settings.mutable_experts()->set_slots(0);
  options_.settings.set_reproducible(true);
  EXPECT_EQ(Chosen(), begin_);
  EXPECT_THAT(why_not_, HasSubstr("reproducible"));
  for (int rank = 0; rank < 4; ++rank) Hold(rank, begin_);
  EXPECT_EQ(Chosen(), begin_);
  EXPECT_EQ(why_not_, "");
}

TEST_F(FirstLayoutTest, CountsReplicasOfACoordinate) {
  ASSERT_TRUE(options_.layout.SetLayer(1, {{0, 1, 3}, {1, 2}}).ok());
  const auto replicas = ReplicasIn(options_.layout, options_.experts);
  ASSERT_TRUE(replicas.has_value());
  EXPECT_THAT(*replicas, ElementsAre(3, 2));
  options_.experts.mtp = true;
  options_.experts.num_layers = 1;  // The prediction layer is layer 0.
  EXPECT_FALSE(ReplicasIn(options_.layout, options_.experts).has_value());
}

}  // namespace
}  // namespace ringfleet::coordinator
