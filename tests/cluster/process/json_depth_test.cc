// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/json_depth.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringfleet::cluster {
namespace {

using ::testing::HasSubstr;

std::string Nested(int depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

TEST(JsonDepthTest, TakesTheLimitAndNoMore) {
  EXPECT_TRUE(CheckJsonDepth("").ok());
  EXPECT_TRUE(CheckJsonDepth(Nested(kMaxJsonDepth)).ok());
  const absl::Status deeper = CheckJsonDepth(Nested(kMaxJsonDepth + 1));
  EXPECT_EQ(deeper.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(deeper.message()), HasSubstr("byte 64"));
  EXPECT_FALSE(CheckJsonDepth(std::string(100'000, '{')).ok());
}

TEST(JsonDepthTest, CountsWhatIsOpenNotWhatThereIs) {
  std::string wide = "[";
  for (int i = 0; i < 1000; ++i) wide += "{\"a\": [1]},";
  EXPECT_TRUE(CheckJsonDepth(wide + "0]").ok());
}

TEST(JsonDepthTest, LeavesStringsAlone) {
  const std::string brackets(1000, '[');
  EXPECT_TRUE(CheckJsonDepth("{\"a\": \"\\\"" + brackets + "\\\\\"}").ok());
  EXPECT_FALSE(CheckJsonDepth("{\"a\\\\\": " + brackets).ok());
  EXPECT_TRUE(CheckJsonDepth("\"open\\").ok());
}

}  // namespace
}  // namespace ringfleet::cluster
