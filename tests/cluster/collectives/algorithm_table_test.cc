// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/algorithm_table.h"

#include <fstream>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::cluster {
namespace {

using ::testing::HasSubstr;
using Row = AlgorithmTable::Row;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr Operation kOperations[] = {
    Operation::kAllReduce, Operation::kAllGather, Operation::kReduceScatter,
    Operation::kAllToAll,  Operation::kBroadcast, Operation::kBarrier};
constexpr Algorithm kEveryAlgorithm[] = {Algorithm::kOneShot,
                                         Algorithm::kTwoShot, Algorithm::kRing};

std::string ErrorOfRows(const std::vector<Row>& rows) {
  const auto table = AlgorithmTable::FromRows(rows);
  if (table.ok()) return "accepted";
  EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(table.status().message());
}

std::string ErrorOfJson(absl::string_view json) {
  const auto table = AlgorithmTable::FromJson(json);
  if (table.ok()) return "accepted";
  EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(table.status().message());
}

TEST(AlgorithmTableTest, NamesGoThereAndBack) {
  for (const Operation operation : kOperations) {
    const auto parsed = ParseOperation(OperationText(operation));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, operation);
  }
  for (const Algorithm algorithm : kEveryAlgorithm) {
    EXPECT_EQ(ParseAlgorithm(AlgorithmText(algorithm)).value(), algorithm);
  }
  for (const Wire wire : {Wire::kF32, Wire::kBf16, Wire::kInt8}) {
    EXPECT_EQ(ParseWire(WireText(wire)).value(), wire);
  }
  EXPECT_EQ(ParseAlgorithm("tree").status(),
            absl::InvalidArgumentError(
                "algorithm 'tree', want one of one_shot, two_shot, ring"));
  EXPECT_EQ(ParseWire("f16").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(ParseOperation("").status().ToString(), HasSubstr("broadcast"));
  EXPECT_EQ(OperationText(static_cast<Operation>(99)), "");
}

// The crossovers of two message rounds of half the bytes against one of all.
TEST(AlgorithmTableTest, DefaultsFollowTheModel) {
  const AlgorithmTable table = AlgorithmTable::Default();
  const auto choose = [&](uint64_t bytes, int size) {
    return table.Choose(Operation::kAllReduce, bytes, size);
  };
  EXPECT_EQ(choose(kMiB, 2), Algorithm::kOneShot);
  EXPECT_EQ(choose(kMiB + 1, 2), Algorithm::kRing);
  // One row of 7168 floats.
  EXPECT_EQ(choose(28672, 4), Algorithm::kOneShot);
  EXPECT_EQ(choose(28672, 8), Algorithm::kTwoShot);
  EXPECT_EQ(choose(14336, 8), Algorithm::kOneShot);
  EXPECT_EQ(choose(14336, 16), Algorithm::kTwoShot);
  for (int size = 3; size <= kMaxGroupSize; ++size) {
    // In us, with the bandwidth that is left of 10 Gbit/s.
    const auto one_shot = [&](double n) {
      return 40 + (size - 2) * 8 + (size - 1) * n * 0.87e-3;
    };
    const auto two_shot = [&](double n) {
      return 2 * (40 + (size - 2) * 8) + 2.0 * (size - 1) / size * n * 0.87e-3;
    };
    for (uint64_t bytes = 1024; bytes < kMiB; bytes += 1000) {
      const bool near = std::abs(one_shot(bytes) - two_shot(bytes)) < 0.01;
      if (near) continue;
      EXPECT_EQ(choose(bytes, size), one_shot(bytes) < two_shot(bytes)
                                         ? Algorithm::kOneShot
                                         : Algorithm::kTwoShot)
          << bytes << " bytes, " << size << " ranks";
    }
    EXPECT_EQ(choose(8 * kMiB, size), Algorithm::kTwoShot);
    EXPECT_EQ(choose(8 * kMiB + 1, size), Algorithm::kRing);
  }
  EXPECT_EQ(table.Choose(Operation::kBroadcast, kMiB + 1, 4), Algorithm::kRing);
}

TEST(AlgorithmTableTest, EveryChoiceIsSupported) {
  std::vector<AlgorithmTable> tables = {AlgorithmTable::Default()};
  for (const Algorithm only : kEveryAlgorithm) {
    tables.push_back(AlgorithmTable::Only(only));
  }
  for (const AlgorithmTable& table : tables) {
    for (const Operation operation : kOperations) {
      for (int size = 1; size <= kMaxGroupSize; ++size) {
        for (const uint64_t bytes :
             {uint64_t{0}, uint64_t{4}, kMiB, 64 * kMiB, ~uint64_t{0}}) {
          EXPECT_TRUE(Supports(operation, table.Choose(operation, bytes, size)))
              << OperationText(operation) << " " << bytes << " " << size;
        }
      }
    }
  }
}

TEST(AlgorithmTableTest, OnlyHoldsForEverySizeOfVector) {
  for (const Algorithm only : kEveryAlgorithm) {
    const AlgorithmTable table = AlgorithmTable::Only(only);
    for (const Operation operation : kOperations) {
      for (const uint64_t bytes : {uint64_t{0}, uint64_t{4}, ~uint64_t{0}}) {
        EXPECT_EQ(table.Choose(operation, bytes, 3),
                  Supports(operation, only)
                      ? only
                      : AlgorithmTable::Default().Choose(operation, bytes, 3));
      }
    }
  }
}

TEST(AlgorithmTableTest, InRankOrderNoSumGoesByARing) {
  for (const AlgorithmTable& table :
       {AlgorithmTable::Default(), AlgorithmTable::Only(Algorithm::kRing),
        *AlgorithmTable::FromRows({{Operation::kAllReduce, 3, 64, 100}})}) {
    const AlgorithmTable ordered = table.InRankOrder();
    EXPECT_EQ(ordered.InRankOrder(), ordered);
    EXPECT_EQ(ordered.ring_slice_bytes(), table.ring_slice_bytes());
    for (int size = 2; size <= kMaxGroupSize; ++size) {
      for (const uint64_t bytes :
           {uint64_t{4}, uint64_t{80}, kMiB, 64 * kMiB, ~uint64_t{0}}) {
        for (const Operation sum :
             {Operation::kAllReduce, Operation::kReduceScatter,
              Operation::kMatmulReduceScatter}) {
          const Algorithm chosen = table.Choose(sum, bytes, size);
          if (chosen == Algorithm::kRing) {
            EXPECT_NE(ordered.Choose(sum, bytes, size), Algorithm::kRing);
          } else {
            EXPECT_EQ(ordered.Choose(sum, bytes, size), chosen);
          }
        }
        EXPECT_EQ(ordered.Choose(Operation::kAllGather, bytes, size),
                  table.Choose(Operation::kAllGather, bytes, size));
      }
    }
  }
}

TEST(AlgorithmTableTest, RowsReplaceDefaults) {
  const auto table = AlgorithmTable::FromRows(
      {{Operation::kAllReduce, 3, 0, 100}, {Operation::kAllGather, 16, 7, 7}});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->Choose(Operation::kAllReduce, 0, 3), Algorithm::kTwoShot);
  EXPECT_EQ(table->Choose(Operation::kAllReduce, 100, 3), Algorithm::kTwoShot);
  EXPECT_EQ(table->Choose(Operation::kAllReduce, 101, 3), Algorithm::kRing);
  EXPECT_EQ(table->Choose(Operation::kAllReduce, 100, 4), Algorithm::kOneShot);
  EXPECT_EQ(table->Choose(Operation::kAllGather, 7, 16), Algorithm::kOneShot);
  EXPECT_EQ(table->Choose(Operation::kAllGather, 8, 16), Algorithm::kRing);
  EXPECT_EQ(AlgorithmTable::FromRows({}).value(), AlgorithmTable::Default());
}

TEST(AlgorithmTableTest, SlicesTravelWithTheTable) {
  const AlgorithmTable standard = AlgorithmTable::Default();
  EXPECT_EQ(standard.ring_slice_bytes(), kDefaultRingSliceBytes);
  const auto without = AlgorithmTable::FromJson(R"({"rows":[]})");
  ASSERT_EQ(without.status(), absl::OkStatus());
  EXPECT_EQ(*without, standard);
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{4} << 20}) {
    const auto table = AlgorithmTable::FromRows({}, bytes);
    ASSERT_EQ(table.status(), absl::OkStatus());
    EXPECT_EQ(table->ring_slice_bytes(), bytes);
    EXPECT_NE(table->Hash(), standard.Hash());
    const auto read = AlgorithmTable::FromJson(table->ToJson());
    ASSERT_EQ(read.status(), absl::OkStatus());
    EXPECT_EQ(*read, *table);
  }
}

TEST(AlgorithmTableTest, RowErrorsNameTheRow) {
  EXPECT_EQ(ErrorOfRows({{Operation::kBarrier, 2, 1, 1}}),
            "algorithm table: a row for operation 'barrier' (4), which has one "
            "algorithm, want one of all_reduce, all_gather, reduce_scatter, "
            "broadcast, matmul_reduce_scatter");
  EXPECT_EQ(ErrorOfRows({{Operation::kAllReduce, 1, 1, 1}}),
            "algorithm table: all_reduce of 1 ranks, want 2 to 16");
  EXPECT_THAT(ErrorOfRows({{Operation::kAllReduce, 17, 1, 1}}),
              HasSubstr("17 ranks, want 2 to 16"));
  EXPECT_EQ(ErrorOfRows({{Operation::kAllReduce, 4, 9, 8}}),
            "algorithm table: all_reduce of 4 ranks: two_shot_max_bytes 8, "
            "want at least one_shot_max_bytes, 9");
  EXPECT_EQ(ErrorOfRows({{Operation::kBroadcast, 4, 8, 9}}),
            "algorithm table: broadcast of 4 ranks: two_shot_max_bytes 9, want "
            "none: there is no two_shot of it");
  EXPECT_EQ(ErrorOfRows({{Operation::kAllReduce, 4, 8, 9},
                         {Operation::kAllReduce, 5, 8, 9},
                         {Operation::kAllReduce, 4, 8, 9}}),
            "algorithm table: all_reduce of 4 ranks: a second row, want one");
}

TEST(AlgorithmTableTest, JsonGoesThereAndBack) {
  const auto table = AlgorithmTable::FromRows(
      {{Operation::kAllReduce, 3, 0, ~uint64_t{0}},
       {Operation::kReduceScatter, 5, 12345678901234567u, 12345678901234567u}});
  ASSERT_TRUE(table.ok());
  for (const AlgorithmTable& sent : {*table, AlgorithmTable::Default(),
                                     AlgorithmTable::Only(Algorithm::kRing)}) {
    const auto back = AlgorithmTable::FromJson(sent.ToJson());
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, sent);
    EXPECT_EQ(back->Hash(), sent.Hash());
  }
  EXPECT_EQ(
      AlgorithmTable::FromJson(
          R"({"rows":[{"operation":"all_gather","size":16,)"
          R"("one_shot_max_bytes":7}]})")
          .value(),
      AlgorithmTable::FromRows({{Operation::kAllGather, 16, 7, 7}}).value());
}

TEST(AlgorithmTableTest, HashTellsTablesApart) {
  std::set<uint64_t> hashes = {AlgorithmTable::Default().Hash()};
  for (const Algorithm only : kEveryAlgorithm) {
    hashes.insert(AlgorithmTable::Only(only).Hash());
  }
  hashes.insert(AlgorithmTable::FromRows({{Operation::kAllReduce, 16, 1, 2}})
                    .value()
                    .Hash());
  hashes.insert(AlgorithmTable::FromRows({{Operation::kAllReduce, 16, 1, 3}})
                    .value()
                    .Hash());
  EXPECT_EQ(hashes.size(), 6u);
}

TEST(AlgorithmTableTest, JsonErrorsNameThePlace) {
  EXPECT_EQ(ErrorOfJson("{"),
            "algorithm table: not JSON, want {\"rows\":[...]}");
  EXPECT_EQ(ErrorOfJson("7"), "algorithm table: 7, want {\"rows\":[...]}");
  EXPECT_THAT(
      ErrorOfJson(R"({"rows":[],"more":1})"),
      HasSubstr("the table: unknown key 'more', want one of ring_slice_bytes"));
  EXPECT_EQ(ErrorOfJson(R"({"rows":[],"ring_slice_bytes":-1})"),
            "algorithm table: the table: ring_slice_bytes -1, want a whole "
            "number from 0");
  EXPECT_EQ(ErrorOfJson(R"({"rows":[],"ring_slice_bytes":65535})"),
            "algorithm table: ring_slice_bytes 65535, want 0 (all at once) or "
            "at least 65536");
  EXPECT_EQ(ErrorOfJson(R"({"rows":[3]})"),
            "algorithm table: rows[0]: 3, want an object");
  constexpr char kGood[] =
      R"({"operation":"all_reduce","size":2,"one_shot_max_bytes":1,)"
      R"("two_shot_max_bytes":2})";
  const auto second = [&](absl::string_view row) {
    return ErrorOfJson(absl::StrCat("{\"rows\":[", kGood, ",", row, "]}"));
  };
  EXPECT_EQ(second("{}"),
            "algorithm table: rows[1]: no operation, want its name");
  EXPECT_THAT(second(R"({"operation":"all_recude"})"),
              HasSubstr("rows[1]: operation 'all_recude', want one of "));
  EXPECT_EQ(second(R"({"operation":"all_reduce","size":-3})"),
            "algorithm table: rows[1]: size -3, want a whole number from 0");
  EXPECT_THAT(second(R"({"operation":"all_reduce","size":4294967298,)"
                     R"("one_shot_max_bytes":1,"two_shot_max_bytes":1})"),
              HasSubstr("want 2 to 16"));
  EXPECT_EQ(second(R"({"operation":"all_reduce","size":3,)"
                   R"("one_shot_max_bytes":1})"),
            "algorithm table: rows[1]: no two_shot_max_bytes");
  EXPECT_EQ(second(R"({"operation":"all_reduce","size":3,)"
                   R"("one_shot_max_bytes":1.5,"two_shot_max_bytes":2})"),
            "algorithm table: rows[1]: one_shot_max_bytes 1.5, want a whole "
            "number from 0");
  EXPECT_THAT(second(R"({"operation":"all_gather","sise":3})"),
              HasSubstr("unknown key 'sise'"));
  EXPECT_THAT(second(kGood), HasSubstr("a second row"));
}

// A value is not printed by recursion over what a file nests.
TEST(AlgorithmTableTest, DeepNestingIsAnError) {
  const std::string open(200'000, '['), close(200'000, ']');
  EXPECT_THAT(ErrorOfJson(open + close), HasSubstr("an array"));
  EXPECT_THAT(ErrorOfJson(absl::StrCat("{\"rows\":[", open, close, "]}")),
              HasSubstr("rows[0]: an array, want an object"));
  EXPECT_THAT(ErrorOfJson(std::string((1 << 20) + 1, ' ')),
              HasSubstr("more than 1048576 bytes"));
}

TEST(AlgorithmTableTest, LoadsAFileAndNamesIt) {
  const testing::TempDir folder;
  const std::string path = folder.File("table.json");
  EXPECT_EQ(AlgorithmTable::Load(path).status(),
            absl::NotFoundError(
                absl::StrCat(path, ": no such file, want an algorithm table")));
  EXPECT_EQ(AlgorithmTable::Load("/dev/zero").status(),
            absl::InvalidArgumentError(
                "/dev/zero: not a regular file, want an algorithm table"));
  const AlgorithmTable table = AlgorithmTable::Only(Algorithm::kTwoShot);
  std::ofstream(path) << table.ToJson();
  EXPECT_EQ(AlgorithmTable::Load(path).value(), table);
  std::ofstream(path) << "{}";
  EXPECT_THAT(AlgorithmTable::Load(path).status().ToString(),
              HasSubstr(absl::StrCat(path, ": algorithm table: an object")));
}

}  // namespace
}  // namespace ringfleet::cluster
