// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/nearest_name.h"

#include "gtest/gtest.h"

namespace ringfleet::cluster {
namespace {

TEST(NearestNameTest, TakesTheNameWithTheFewestEdits) {
  EXPECT_EQ(NearestName("modle", {"mesh", "model", "mode"}), "mode");
  EXPECT_EQ(NearestName("model", {"mesh", "model"}), "model");
  EXPECT_EQ(NearestName("--temperatur", {"--temp", "--temperature"}),
            "--temperature");
}

TEST(NearestNameTest, AFarNameIsNotMeant) {
  EXPECT_EQ(NearestName("port", {"wire", "dtype"}), "");
  EXPECT_EQ(NearestName("abc", {"xyc"}), "xyc");  // 2 edits.
  EXPECT_EQ(NearestName("abc", {"xyz"}), "");
  EXPECT_EQ(NearestName("abcdefghi", {"xyzdefghi"}), "xyzdefghi");  // A third.
  EXPECT_EQ(NearestName("abcdefghi", {"xyzwefghi"}), "");
  EXPECT_EQ(NearestName("x", {}), "");
}

}  // namespace
}  // namespace ringfleet::cluster
