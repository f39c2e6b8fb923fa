// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/survivors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ringfleet::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Three groups of 2 x 2 ranks, so six coordinates; experts in layers 1 and 2
// (MTP).
FleetOptions Options(const std::vector<std::vector<int32_t>>& held) {
  FleetOptions options;
  options.mesh = {3, 2, 2};
  options.settings.set_parallel(8);
  options.memory_gib = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  options.experts.layers = {1};
  options.experts.num_layers = 3;
  options.experts.mtp = true;
  options.layout = cluster::ExpertLayout(3, 4, 6);
  EXPECT_TRUE(options.layout.SetLayer(1, held).ok());
  EXPECT_TRUE(options.layout.SetLayer(2, held).ok());
  EXPECT_TRUE(options.layout.SetSpeeds({6, 5, 4, 3, 2, 1}).ok());
  return options;
}

const std::vector<std::vector<int32_t>> kTwice = {{0, 1}, {2, 3}, {0, 1},
                                                  {2},    {3},    {0}};

TEST(SurvivorsTest, WholeGroupsKeepTheirExperts) {
  const auto survivors = FindSurvivors(Options(kTwice), {9});
  ASSERT_TRUE(survivors.ok()) << survivors.status();
  EXPECT_THAT(survivors->ranks, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  const FleetOptions& options = survivors->options;
  EXPECT_EQ(options.mesh.data, 2);
  EXPECT_EQ(options.mesh.world_size(), 8);
  EXPECT_EQ(options.GroupSlots(), Options(kTwice).GroupSlots());
  EXPECT_THAT(options.memory_gib, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(options.layout.num_coordinates(), 4);
  EXPECT_THAT(options.layout.Held(1, 3), ElementsAre(2));
  EXPECT_THAT(options.layout.Coordinates(1, 0), ElementsAre(0, 2));
  EXPECT_DOUBLE_EQ(options.layout.slowness()[3], 2.0);
}

TEST(SurvivorsTest, GroupsInTheMiddleMayGo) {
  const auto survivors = FindSurvivors(Options(kTwice), {4, 5, 6});
  ASSERT_TRUE(survivors.ok()) << survivors.status();
  EXPECT_THAT(survivors->ranks, ElementsAre(0, 1, 2, 3, 8, 9, 10, 11));
  EXPECT_THAT(survivors->options.memory_gib,
              ElementsAre(0, 1, 2, 3, 8, 9, 10, 11));
  EXPECT_THAT(survivors->options.layout.Held(2, 2), ElementsAre(3));
}

TEST(SurvivorsTest, AnExpertWithoutACopyElsewhereEndsIt) {
  // Expert 3 is at coordinates 1 and 4 only, groups 0 and 2.
  EXPECT_TRUE(FindSurvivors(Options(kTwice), {0}).ok());
  const absl::Status status = FindSurvivors(Options(kTwice), {0, 11}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("expert 3"));
  // The MTP layer counts as well.
  FleetOptions options = Options(kTwice);
  ASSERT_TRUE(
      options.layout.SetLayer(2, {{0, 1, 2, 3}, {}, {}, {}, {}, {}}).ok());
  EXPECT_FALSE(FindSurvivors(options, {1}).ok());
  options.experts.mtp = false;
  EXPECT_TRUE(FindSurvivors(options, {1}).ok());
}

TEST(SurvivorsTest, WithoutExpertsAnyGroupWillDo) {
  FleetOptions options;
  options.mesh = {2, 1, 1};
  const auto survivors = FindSurvivors(options, {0});
  ASSERT_TRUE(survivors.ok()) << survivors.status();
  EXPECT_THAT(survivors->ranks, ElementsAre(1));
  EXPECT_EQ(survivors->options.layout.num_layers(), 0);
}

TEST(SurvivorsTest, AWholeGroupIsNeeded) {
  EXPECT_THAT(
      std::string(FindSurvivors(Options(kTwice), {0, 4, 8}).status().message()),
      HasSubstr("none of 3 data groups is whole"));
}

}  // namespace
}  // namespace ringfleet::coordinator
