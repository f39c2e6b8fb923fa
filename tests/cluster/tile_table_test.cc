// SPDX-License-Identifier: Apache-2.0
#include "cluster/tile_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_replace.h"

namespace ringfleet::cluster {
namespace {

using ::testing::HasSubstr;

const TileTable::Row kRow = {
    .key = {.cpu = "A \"fast\" one",
            .operation = Operation::kMatmulReduceScatter,
            .rows = 512,
            .inputs = 16384,
            .outputs = 7168,
            .dtype = "int8",
            .world = 4},
    .tile_columns = 64,
    .segment_bytes = 65536,
    .piece_rows = 16};

TEST(TileTableTest, SurvivesItsFile) {
  TileTable table;
  table.Set(kRow);
  TileTable::Row other = kRow;
  other.key.world = 2;
  table.Set(other);
  other.piece_rows = 48;
  table.Set(other);  // In place of the one before.
  const auto read = TileTable::FromJson(table.ToJson());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->rows(), (std::vector<TileTable::Row>{kRow, other}));
  ASSERT_NE(read->Find(kRow.key), nullptr);
  EXPECT_EQ(*read->Find(kRow.key), kRow);
  TileTable::Key missing = kRow.key;
  ++missing.rows;
  EXPECT_EQ(read->Find(missing), nullptr);
}

TEST(TileTableTest, ErrorsNameTheRowAndTheField) {
  const auto error = [](const std::string& json) {
    const auto table = TileTable::FromJson(json);
    return table.ok() ? "accepted" : std::string(table.status().message());
  };
  TileTable table;
  table.Set(kRow);
  const std::string good = table.ToJson();
  const auto with = [&](const char* what, const char* instead) {
    return error(absl::StrReplaceAll(good, {{what, instead}}));
  };
  EXPECT_EQ(error(good), "accepted");
  EXPECT_EQ(error("{"), "tile table: document: want {\"rows\":[...]}");
  EXPECT_EQ(error("[]"), "tile table: document: want {\"rows\":[...]}");
  EXPECT_EQ(error("{\"rows\":[3]}"), "tile table: row 0: want an object");
  EXPECT_EQ(with("\"m\"", "\"M\""),
            "tile table: row 0: m, want a whole number");
  EXPECT_EQ(with("512", "-1"), "tile table: row 0: m, want a whole number");
  EXPECT_EQ(with("\"int8\"", "8"), "tile table: row 0: dtype, want a string");
  EXPECT_THAT(with("matmul_reduce_scatter", "all_reduce"),
              HasSubstr("operation 'all_reduce', want all_gather_matmul or"));
  EXPECT_EQ(with("\"world\": 4", "\"world\": 17"),
            "tile table: row 0: world 17, want 1 to 16");
  EXPECT_THAT(std::string(TileTable::Load("/absent").status().message()),
              HasSubstr("/absent: no such file"));
}

}  // namespace
}  // namespace ringfleet::cluster
