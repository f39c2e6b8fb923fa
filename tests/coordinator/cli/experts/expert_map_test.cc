// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/experts/expert_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ExpertMapTest, CellsShowTokensOverTheMean) {
  const std::string map = ExpertMap(
      {{"3", {0, 1, 2, 5, 6, 8, 11, 15, 16, 16}}, {"12", {0, 0, 0, 40}}}, {});
  // The mean is 8: from none to twice as many.
  EXPECT_THAT(map, HasSubstr("\n    3     2.00  .:-=+xoO##\n"));
  EXPECT_THAT(map, HasSubstr("\n   12     4.00  ...@\n"));
  EXPECT_THAT(map, HasSubstr("layer max/mean  experts from 0 on\n"));
  EXPECT_THAT(map, HasSubstr(":  . 0  : 0.125  - 0.25 "));
  EXPECT_THAT(map, Not(HasSubstr("\033")));
}

TEST(ExpertMapTest, ALayerWithoutTokensHasNoImbalance) {
  EXPECT_THAT(ExpertMap({{"1", {0, 0, 0}}}, {}),
              HasSubstr("\n    1        -  ...\n"));
}

TEST(ExpertMapTest, LongLinesAreFoldedAtAPowerOfTwo) {
  const std::vector<ExpertRow> rows = {{"1", std::vector<double>(160, 1.0)}};
  const auto map = [&rows](int columns) {
    return ExpertMap(rows, {.columns = columns});
  };
  const std::string indent(16, ' ');
  const auto line = [](size_t cells) {
    return absl::StrCat(std::string(cells, 'x'), "\n");
  };
  EXPECT_THAT(map(80), HasSubstr(absl::StrCat("1.00  ", line(64), indent,
                                              line(64), indent, line(32))));
  EXPECT_THAT(map(150),
              HasSubstr(absl::StrCat("1.00  ", line(128), indent, line(32))));
  EXPECT_THAT(map(10),
              HasSubstr(absl::StrCat("1.00  ", line(16), indent, line(16))));
}

TEST(ExpertMapTest, ColorsCarryNoCharacters) {
  const std::string map = ExpertMap({{"1", {2, 0}}}, {.color = true});
  EXPECT_THAT(map,
              HasSubstr("  \033[48;5;202m \033[0m\033[48;5;236m \033[0m\n"));
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
