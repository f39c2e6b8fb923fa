// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/tile_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/restrictions.h"

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
  EXPECT_EQ(read->Hash(), table.Hash());
  table.Set(kRow);
  EXPECT_EQ(read->Hash(), table.Hash());
  other.piece_rows = 49;
  table.Set(other);
  EXPECT_NE(read->Hash(), table.Hash());
}

TileTable::Key WithRows(uint64_t rows) {
  TileTable::Key key = kRow.key;
  key.rows = rows;
  return key;
}

TEST(TileTableTest, TheNearestNumberOfRowsDecides) {
  TileTable table;
  for (const uint64_t rows : {128, 512}) {
    table.Set({.key = WithRows(rows),
               .tile_columns = rows,
               .segment_bytes = rows + 1,
               .piece_rows = rows + 2});
  }
  constexpr TileTable::Cut kSmall = {128, 129, 130}, kLarge = {512, 513, 514};
  EXPECT_EQ(table.Nearest(WithRows(63)), TileTable::Cut());
  EXPECT_EQ(table.Nearest(WithRows(64)), kSmall);
  EXPECT_EQ(table.Nearest(WithRows(255)), kSmall);
  EXPECT_EQ(table.Nearest(WithRows(256)), kSmall);  // The first of two.
  EXPECT_EQ(table.Nearest(WithRows(257)), kLarge);
  EXPECT_EQ(table.Nearest(WithRows(1024)), kLarge);
  EXPECT_EQ(table.Nearest(WithRows(1025)), TileTable::Cut());
  EXPECT_EQ(table.Nearest(WithRows(0)), TileTable::Cut());
  const auto nothing_for = [&](auto change) {
    TileTable::Key key = WithRows(128);
    change(key);
    EXPECT_EQ(table.Nearest(key), TileTable::Cut());
  };
  nothing_for([](auto& key) { key.operation = Operation::kAllGatherMatmul; });
  nothing_for([](auto& key) { ++key.inputs; });
  nothing_for([](auto& key) { ++key.outputs; });
  nothing_for([](auto& key) { key.dtype = "bf16"; });
  nothing_for([](auto& key) { key.world = 2; });
}

TEST(TileTableTest, ProcessorsShareSegmentBytesOnly) {
  TileTable table;
  TileTable::Row first = kRow;
  first.segment_bytes = 1000;
  TileTable::Row second = kRow;
  second.key.cpu = "a slow one";
  second.tile_columns = 320;
  second.segment_bytes = 2000;
  table.Set(first);
  table.Set(second);
  EXPECT_EQ(table.Nearest(first.key), (TileTable::Cut{64, 1000, 16}));
  EXPECT_EQ(table.Nearest(second.key), (TileTable::Cut{320, 1000, 16}));
  TileTable::Key unknown = kRow.key;
  unknown.cpu = "another one";
  EXPECT_EQ(table.Nearest(unknown), (TileTable::Cut{0, 1000, 0}));
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
  EXPECT_EQ(
      with("\"m\"", "\"M\""),
      "tile table: row 0: unknown key 'M', want one of cpu, operation, m, "
      "n, k, dtype, world, tile_columns, segment_bytes, piece_rows");
  EXPECT_EQ(with("\"m\": 512,", ""),
            "tile table: row 0: m, want a whole number");
  EXPECT_EQ(with("\"rows\"", "\"row\": 1, \"rows\""),
            "tile table: document: unknown key 'row', want one of rows");
  for (const char* dtype : {"int9", "int4-experts", "INT8", ""}) {
    EXPECT_EQ(with("\"int8\"", absl::StrCat("\"", dtype, "\"").c_str()),
              absl::StrCat("tile table: row 0: dtype '", dtype,
                           "', want one of f32, bf16, int8, int4"));
  }
  EXPECT_EQ(with("512", "-1"), "tile table: row 0: m, want a whole number");
  EXPECT_EQ(with("\"int8\"", "8"), "tile table: row 0: dtype, want a string");
  EXPECT_THAT(with("matmul_reduce_scatter", "all_reduce"),
              HasSubstr("operation 'all_reduce', want all_gather_matmul or"));
  EXPECT_EQ(with("\"world\": 4", "\"world\": 17"),
            "tile table: row 0: world 17, want 1 to 16");
  EXPECT_EQ(with("65536", "0"),
            "tile table: row 0: a cut of 0, want 1 to 1073741824");
  EXPECT_EQ(with("65536", "1073741825"),
            "tile table: row 0: a cut of 1073741825, want 1 to 1073741824");
}

TEST(TileTableTest, LoadsAFileOrSaysWhatIsTheMatter) {
  const testing::TempDir folder;
  const std::string path = folder.File("tiles.json");
  EXPECT_EQ(TileTable::Load(path).status(),
            absl::NotFoundError(
                absl::StrCat(path, ": no such file, want a tile table")));
  TileTable table;
  table.Set(kRow);
  testing::WriteFile(path, table.ToJson());
  const auto read = TileTable::Load(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->rows(), table.rows());
  testing::WriteFile(path, "{}");
  EXPECT_EQ(
      TileTable::Load(path).status().message(),
      absl::StrCat(path, ": tile table: document: want {\"rows\":[...]}"));
  for (const std::string& other : {folder.path(), std::string("/dev/zero")}) {
    EXPECT_EQ(TileTable::Load(other).status(),
              absl::InvalidArgumentError(absl::StrCat(
                  other, ": not a regular file, want a tile table")));
  }
  testing::WriteFile(path, std::string((1 << 20) + 1, ' '));
  EXPECT_EQ(TileTable::Load(path).status(),
            absl::InvalidArgumentError(absl::StrCat(
                path,
                ": 1048577 bytes, want at most 1048576, want a tile "
                "table")));
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  const testing::BoundByPermissions bound;
  EXPECT_EQ(TileTable::Load(path).status(),
            absl::PermissionDeniedError(absl::StrCat(
                path, ": can't open: Permission denied, want a tile table")));
}

}  // namespace
}  // namespace ringfleet::cluster
