// SPDX-License-Identifier: Apache-2.0
// The rows of a matrix by rank, and each rank's rows in two parts.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_SPLIT_ROWS_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_SPLIT_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/products/row_range.h"

namespace ringfleet::cluster {

// The first rows of a shard, kLeft, and the rest, kRight. A ring's gather sends
// a part in the direction of its name. A reduction is a gather in reverse and
// sends the other way.
enum class Side : uint8_t { kLeft = 0, kRight = 1 };

// One part of one rank's rows.
struct ShardPart {
  int shard = 0;
  Side side = Side::kLeft;

  bool operator==(const ShardPart&) const = default;
};

// Gives rank q the rows from floor(q rows / ranks) up to floor((q + 1) rows /
// ranks). The left part is the longer one when their number is odd. Parts and
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

// Returns the bytes of a frame of sums where no size was measured: a sixteenth
// of a part, between 64 and 512 KiB. With short frames the last one is soon
// there, and a ring's next rank soon has bytes to pass on. A frame costs 10 to
// 20 us of CPU time, and more beside a product. Level-2 caches hold two
// directions of the longest frames.
inline size_t DefaultSumSegmentBytes(size_t rows, int ranks, size_t row_bytes) {
  const size_t parts = 2 * static_cast<size_t>(ranks);
  const size_t part_bytes = (rows + parts - 1) / parts * row_bytes;
  return std::clamp<size_t>(part_bytes / 16, size_t{64} << 10,
                            size_t{512} << 10);
}

// Returns the bytes of a frame of gathered rows where no size was measured. A
// part is cut into three frames, or fewer where they would have less than about
// 16 KiB. So rows do not wait for later rows, and few rows are left to multiply
// when the last frame has come.
inline size_t DefaultRowSegmentBytes(size_t rows, int ranks, size_t row_bytes) {
  constexpr size_t kLeastBytes = size_t{16} << 10;
  const size_t parts = 2 * static_cast<size_t>(ranks);
  const size_t part_rows = (rows + parts - 1) / parts;
  const size_t frames =
      std::clamp<size_t>(part_rows * row_bytes / kLeastBytes, 1, 3);
  const size_t frame_rows = (part_rows + frames - 1) / frames;
  return std::min(std::max<size_t>(frame_rows * row_bytes, 1),
                  DefaultSumSegmentBytes(rows, ranks, row_bytes));
}

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_SPLIT_ROWS_H_
