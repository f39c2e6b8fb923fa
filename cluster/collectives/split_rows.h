// SPDX-License-Identifier: Apache-2.0
// Splits the rows of a matrix over ranks, and each rank's rows into two parts.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_SPLIT_ROWS_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_SPLIT_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/products/row_range.h"

namespace ringfleet::cluster {

// The two parts of a shard: kLeft has the first rows, kRight the rest. A gather
// sends kLeft parts to the left and kRight parts to the right. A reduction
// sends each part the opposite way.
enum class Side : uint8_t { kLeft = 0, kRight = 1 };

// One part of one rank's rows.
struct ShardPart {
  int shard = 0;
  Side side = Side::kLeft;

  bool operator==(const ShardPart&) const = default;
};

// Gives rank q the rows from floor(q rows / ranks) up to floor((q + 1) rows /
// ranks). An odd number of rows makes the left part longer by a row. Parts and
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

// Returns the frame size of a reduction that no tuning measured: a sixteenth of
// a part, clamped to 64 to 512 KiB. A short last frame arrives soon, and short
// frames soon give a ring's next rank bytes to pass on. A frame costs 10 to 20
// us of CPU time, and more beside a product. Level-2 caches hold two directions
// of the longest frames.
inline size_t DefaultSumSegmentBytes(size_t rows, int ranks, size_t row_bytes) {
  const size_t parts = 2 * static_cast<size_t>(ranks);
  const size_t part_bytes = (rows + parts - 1) / parts * row_bytes;
  return std::clamp<size_t>(part_bytes / 16, size_t{64} << 10,
                            size_t{512} << 10);
}

// Returns the frame size of a gather that no tuning measured. A part is cut
// into three frames, or fewer if three would have less than about 16 KiB each.
// So rows do not wait for later rows, and few rows are left to multiply when
// the last frame has come.
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
