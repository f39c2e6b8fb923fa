// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/split_rows.h"

#include <gtest/gtest.h>

#include <cstddef>

#include "cluster/collectives/split_rows_frames.h"

namespace ringfleet::cluster {
namespace {

TEST(SplitRowsTest, PartsFollowOneAnother) {
  for (const size_t rows : {0, 1, 2, 7, 16, 100}) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      const SplitRows parts(rows, ranks);
      size_t end = 0;
      for (int shard = 0; shard < ranks; ++shard) {
        const kernels::RowRange left = parts.Of({shard, Side::kLeft});
        const kernels::RowRange right = parts.Of({shard, Side::kRight});
        EXPECT_EQ(left.begin, end);
        EXPECT_EQ(right.begin, left.end);
        EXPECT_LE(left.size() - right.size(), 1u);
        EXPECT_LE(parts.Shard(shard).size(), rows / ranks + 1);
        end = right.end;
      }
      EXPECT_EQ(end, rows);
    }
  }
}

TEST(DefaultSumSegmentBytesTest, IsASixteenthOfAPartWithinItsBounds) {
  // 512 rows of 28 KiB on two ranks: a part has 128.
  EXPECT_EQ(DefaultSumSegmentBytes(512, 2, 28 << 10), 128u * (28 << 10) / 16);
  EXPECT_EQ(DefaultSumSegmentBytes(1, 8, size_t{16} << 20), size_t{512} << 10);
  EXPECT_EQ(DefaultSumSegmentBytes(128, 2, 1536), size_t{64} << 10);
  EXPECT_EQ(DefaultSumSegmentBytes(0, 1, 1536), size_t{64} << 10);
}

TEST(DefaultRowSegmentBytesTest, CutsAPartIntoThreeThatAreLargeEnough) {
  constexpr size_t kRow = 1 << 10;
  for (const size_t part : {48, 49, 50, 191}) {
    EXPECT_EQ(DefaultRowSegmentBytes(4 * part, 2, kRow), (part + 2) / 3 * kRow);
  }
  EXPECT_EQ(DefaultRowSegmentBytes(4 * 47, 2, kRow), 24 * kRow);  // In two.
  EXPECT_EQ(DefaultRowSegmentBytes(4 * 31, 2, kRow), 31 * kRow);
  for (const size_t part : {193, 4096, 16384}) {
    EXPECT_EQ(DefaultRowSegmentBytes(4 * part, 2, kRow),
              DefaultSumSegmentBytes(4 * part, 2, kRow));
  }
  EXPECT_EQ(DefaultRowSegmentBytes(0, 1, kRow), 1u);
  EXPECT_EQ(DefaultRowSegmentBytes(9, 2, 0), 1u);
}

TEST(SplitRowsFramesTest, RowsAndSumsHaveTheirOwnDefaults) {
  SplitRowsLayout layout = {.rows = 128, .row_size = 1536};
  EXPECT_EQ(RowFrameBytes(layout, 2), 11u * 1536);  // Of 32 rows.
  const WireFormat bf16(Wire::kBf16, layout.row_size);
  EXPECT_EQ(SumFrameElements(layout, 2, bf16), 21u * 1536);  // 64 KiB.
  layout.segment_bytes = 5000;
  EXPECT_EQ(RowFrameBytes(layout, 2), 3u * 1536);
  EXPECT_EQ(SumFrameElements(layout, 2, bf16), 1536u);
}

}  // namespace
}  // namespace ringfleet::cluster
