// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/table.h"

#include "gtest/gtest.h"

namespace ringfleet::coordinator::cli {
namespace {

TEST(TableTest, ColumnsWithoutAWidthAreNotPadded) {
  Table table({{"name"}, {"GB/s", true}});
  EXPECT_TRUE(table.empty());
  table.Add({"a", "1.5"});
  table.Add({"long name", "20.25"});
  EXPECT_FALSE(table.empty());
  EXPECT_EQ(table.text(),
            "| name | GB/s |\n"
            "|---|---:|\n"
            "| a | 1.5 |\n"
            "| long name | 20.25 |\n");
}

TEST(TableTest, CellsArePaddedToTheWidthInCharacters) {
  const Table table({{"name", false, 6}, {"t/s", true, 8}});
  EXPECT_EQ(table.Header(),
            "| name   |      t/s |\n"
            "| ------ | -------: |\n");
  EXPECT_EQ(table.Row({"a", "1 ± 2"}), "| a      |    1 ± 2 |\n");
  EXPECT_EQ(table.Row({"longer than 6", "1"}),
            "| longer than 6 |        1 |\n");
}

TEST(TableTest, CellsHaveNoControls) {
  const Table table({{"name", false, 6}, {"remark"}});
  EXPECT_EQ(table.Row({"a\nb",
                       "\x1b[31mred\x07 \xc2\x9b"
                       "2J\xff"}),
            "| a b    |  [31mred   2J\xef\xbf\xbd |\n");
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
