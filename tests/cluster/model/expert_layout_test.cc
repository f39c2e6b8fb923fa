// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/expert_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cluster/model/shard_plan.h"

namespace ringfleet::cluster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Refusal(std::vector<std::vector<int32_t>> held, int layer = 0) {
  ExpertLayout layout(2, 4, 2);
  const ExpertLayout before = layout;
  const absl::Status status = layout.SetLayer(layer, std::move(held));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(layout, before);
  return std::string(status.message());
}

TEST(ExpertLayoutTest, StartsWithConsecutiveExpertsTogether) {
  for (const int experts : {0, 1, 5, 256}) {
    for (const int num_coordinates : {1, 2, 3, 7}) {
      const ExpertLayout layout(3, experts, num_coordinates);
      EXPECT_EQ(layout.num_layers(), 3);
      for (int coordinate = 0; coordinate < num_coordinates; ++coordinate) {
        const Range range = SplitRange(experts, num_coordinates, coordinate);
        ASSERT_EQ(layout.Held(2, coordinate).size(),
                  static_cast<size_t>(range.size()));
        for (int e = range.begin; e < range.end; ++e) {
          EXPECT_EQ(layout.IndexOf(2, coordinate, e), e - range.begin);
          EXPECT_THAT(layout.Coordinates(2, e), ElementsAre(coordinate));
        }
      }
    }
  }
}

TEST(ExpertLayoutTest, CopiesAreFoundFromBothSides) {
  ExpertLayout layout(2, 4, 3);
  ASSERT_TRUE(layout.SetLayer(1, {{3, 0}, {2, 1, 3}, {}}).ok());
  EXPECT_THAT(layout.Held(1, 0), ElementsAre(0, 3));
  EXPECT_THAT(layout.Held(1, 1), ElementsAre(1, 2, 3));
  EXPECT_THAT(layout.Held(1, 2), IsEmpty());
  EXPECT_THAT(layout.Coordinates(1, 3), ElementsAre(0, 1));
  EXPECT_THAT(layout.Coordinates(1, 2), ElementsAre(1));
  EXPECT_EQ(layout.IndexOf(1, 1, 3), 2);
  EXPECT_EQ(layout.IndexOf(1, 0, 1), -1);
  // The other layer is as it was.
  EXPECT_THAT(layout.Held(0, 2), ElementsAre(2, 3));
}

TEST(ExpertLayoutTest, TravelsAsWhatDiffers) {
  const ExpertLayout base(4, 6, 2);
  ExpertLayout changed = base;
  ASSERT_TRUE(changed.SetLayer(1, {{0, 1, 2, 3}, {2, 3, 4, 5}}).ok());
  ASSERT_TRUE(changed.SetLayer(3, {{}, {0, 1, 2, 3, 4, 5}}).ok());
  const v1::ExpertLayout message = changed.Difference(base);
  EXPECT_EQ(message.layers_size(), 2);
  EXPECT_EQ(base.Difference(base).layers_size(), 0);
  ExpertLayout received = base;
  ASSERT_TRUE(received.Merge(message).ok());
  EXPECT_EQ(received, changed);
}

TEST(ExpertLayoutTest, SpeedsAreRelativeToTheFastest) {
  ExpertLayout layout(1, 4, 2);
  EXPECT_THAT(layout.slowness(), ElementsAre(1, 1));
  ASSERT_TRUE(layout.SetSpeeds({10.0f, 40.0f}).ok());
  EXPECT_THAT(layout.slowness(), ElementsAre(4, 1));
  ExpertLayout received(1, 4, 2);
  ASSERT_TRUE(received.Merge(layout.Difference(received)).ok());
  EXPECT_EQ(received, layout);
  EXPECT_FALSE(layout.SetSpeeds({1.0f}).ok());
  EXPECT_FALSE(layout.SetSpeeds({1.0f, 0.0f}).ok());
  EXPECT_FALSE(layout.SetSpeeds({1.0f, NAN}).ok());
}

TEST(ExpertLayoutTest, RefusesWhatIsNoLayout) {
  EXPECT_THAT(Refusal({{0, 1}, {2, 3}}, 2),
              HasSubstr("layer 2: want a layer below 2"));
  EXPECT_THAT(Refusal({{0, 1}, {2, 3}}, -1), HasSubstr("layer -1"));
  EXPECT_THAT(Refusal({{0, 1, 2, 3}}), HasSubstr("1 coordinates, want 2"));
  EXPECT_THAT(Refusal({{0, 1, 4}, {2, 3}}),
              HasSubstr("expert 4 at coordinate 0, want 0 to 3"));
  EXPECT_THAT(Refusal({{0, 1}, {2, 3, -1}}), HasSubstr("expert -1"));
  EXPECT_THAT(Refusal({{0, 1}, {2, 3, 2}}),
              HasSubstr("expert 2 is twice at coordinate 1"));
  EXPECT_THAT(Refusal({{0, 1}, {3}}),
              HasSubstr("expert 2 is at no coordinate"));
}

TEST(ExpertLayoutTest, RefusesBadMessages) {
  v1::ExpertLayout message;
  message.add_layers()->set_layer(0xffffffffu);
  ExpertLayout layout(1, 2, 1);
  EXPECT_FALSE(layout.Merge(message).ok());
  message.mutable_layers(0)->set_layer(0);
  EXPECT_FALSE(layout.Merge(message).ok());
  message.mutable_layers(0)->add_coordinates()->add_experts(0xffffffffu);
  EXPECT_FALSE(layout.Merge(message).ok());
}

}  // namespace
}  // namespace ringfleet::cluster
