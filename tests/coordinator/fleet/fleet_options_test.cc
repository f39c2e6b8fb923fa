// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/fleet_options.h"

#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::StartsWith;

TEST(FleetOptionsTest, FollowFromTheSettings) {
  v1::FleetSettings settings = cluster::DefaultSettings();
  settings.set_parallel(5);
  cluster::SetMesh({.data = 2, .tensor = 2}, &settings);
  const auto options = MakeFleetOptions(settings, "");
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->mesh.world_size(), 4);
  EXPECT_EQ(options->GroupSlots(), 3u);
  EXPECT_EQ(options->RebalanceInterval(), absl::ZeroDuration());
  EXPECT_EQ(options->step_timeout, absl::Minutes(10));
  EXPECT_EQ(options->settings.DebugString(), settings.DebugString());
}

TEST(FleetOptionsTest, ExpertsMoveAtTheirIntervalOnly) {
  v1::FleetSettings settings = cluster::DefaultSettings();
  settings.mutable_experts()->set_rebalance(v1::EXPERT_REBALANCE_AUTO);
  const auto options = MakeFleetOptions(std::move(settings), "");
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->RebalanceInterval(), absl::Seconds(60));
}

TEST(FleetOptionsTest, AStepTakesAsLongAsTheSettingsSay) {
  v1::FleetSettings settings = cluster::DefaultSettings();
  settings.set_step_timeout_s(7);
  const auto options = MakeFleetOptions(std::move(settings), "");
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->step_timeout, absl::Seconds(7));
}

TEST(FleetOptionsTest, AMissingTableNamesItsSetting) {
  v1::FleetSettings settings = cluster::DefaultSettings();
  settings.set_tiles("/absent");
  EXPECT_THAT(
      std::string(MakeFleetOptions(settings, "usage: --").status().message()),
      StartsWith("usage: --tiles /absent: "));
}

}  // namespace
}  // namespace ringfleet::coordinator
