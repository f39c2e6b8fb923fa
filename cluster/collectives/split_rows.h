// SPDX-License-Identifier: Apache-2.0
// How the rows of a matrix are shared out over ranks, and in two halves each.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_SPLIT_ROWS_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_SPLIT_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/products/row_range.h"

namespace ringfleet::cluster {

// The first rows of a shard, kLeft, and the rest, kRight. A ring's gather sends
// them in the direction they are named after; a reduction, which is a gather in
// reverse, the other way.
enum class Side : uint8_t { kLeft = 0, kRight = 1 };

// One half of one rank's rows.
struct ShardPart {
  int shard = 0;
  Side side = Side::kLeft;

  bool operator==(const ShardPart&) const = default;
};

// Rank q has the rows from floor(q rows / ranks) up to floor((q + 1) rows /
// ranks), and its left half is the longer one if they are odd. Halves and
// shards may be empty.
class SplitRows {
 public:
  SplitRows(size_t rows, int ranks)
      : rows_(rows), ranks_(static_cast<size_t>(ranks)) {}

  size_t rows() const { return rows_; }

  kernels::RowRange Shard(int shard) const {
    const auto q = static_cast<size_t>(shard);
    return {FirstRow(q), FirstRow(q + 1)};
  }

  kernels::RowRange Of(ShardPart which) const {
    const kernels::RowRange all = Shard(which.shard);
    const size_t middle = all.begin + (all.size() + 1) / 2;
    return which.side == Side::kLeft ? kernels::RowRange{all.begin, middle}
                                     : kernels::RowRange{middle, all.end};
  }

 private:
  // floor(q rows / ranks), without overflow.
  size_t FirstRow(size_t q) const {
    return rows_ / ranks_ * q + rows_ % ranks_ * q / ranks_;
  }

  size_t rows_;
  size_t ranks_;
};

// What a frame carries of sums that travel in halves, about, where nothing else
// was measured: a sixteenth of a half, so that what is last is soon there and
// a ring's next rank soon has what it passes on, but no less than 64 KiB, since
// a frame costs 10 to 20 us of CPU time and more beside a product, and no more
// than what level-2 caches hold of two directions.
inline size_t DefaultSumSegmentBytes(size_t rows, int ranks, size_t row_bytes) {
  const size_t parts = 2 * static_cast<size_t>(ranks);
  const size_t half_bytes = (rows + parts - 1) / parts * row_bytes;
  return std::clamp<size_t>(half_bytes / 16, size_t{64} << 10,
                            size_t{512} << 10);
}

// The same of rows that are multiplied when they have come. A half is then cut
// into three, as far as that makes frames of 16 KiB, about: rows do not wait
// for those behind them, and the last ones, which come when nothing else is
// left to multiply by, are few.
inline size_t DefaultRowSegmentBytes(size_t rows, int ranks, size_t row_bytes) {
  constexpr size_t kLeastBytes = size_t{16} << 10;
  const size_t parts = 2 * static_cast<size_t>(ranks);
  const size_t half_rows = (rows + parts - 1) / parts;
  const size_t frames =
      std::clamp<size_t>(half_rows * row_bytes / kLeastBytes, 1, 3);
  const size_t frame_rows = (half_rows + frames - 1) / frames;
  return std::min(std::max<size_t>(frame_rows * row_bytes, 1),
                  DefaultSumSegmentBytes(rows, ranks, row_bytes));
}

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_SPLIT_ROWS_H_
