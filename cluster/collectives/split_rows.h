// SPDX-License-Identifier: Apache-2.0
// Splits the rows of a matrix over ranks, and each rank's rows (a shard) into
// two parts.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_SPLIT_ROWS_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_SPLIT_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/products/row_range.h"

namespace ringfleet::cluster {

// The two parts of a shard. kLeft has the first rows, kRight the rest. On a
// ring, a gather sends kLeft parts to rank r - 1 and kRight parts to rank
// r + 1. A reduction sends kLeft parts to rank r + 1 and kRight parts to rank
// r - 1.
enum class Side : uint8_t { kLeft = 0, kRight = 1 };

// One part of one rank's rows. `shard` is the rank.
struct ShardPart {
  int shard = 0;
  Side side = Side::kLeft;

  bool operator==(const ShardPart&) const = default;
};

// Gives rank q the rows [q * rows / ranks, (q + 1) * rows / ranks), both
// rounded down. If a shard has an odd number of rows, its left part is one row
// longer than its right part. Parts and shards may be empty.
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
  // Returns q * rows / ranks, rounded down, without overflow.
  size_t FirstRow(size_t q) const {
    return rows_ / ranks_ * q + rows_ % ranks_ * q / ranks_;
  }

  size_t rows_;
  size_t ranks_;
};

// Returns the bytes of a frame of a reduction that was not tuned: a sixteenth
// of a part, but 64 to 512 KiB. Short frames make the wait for the last frame
// short, and a ring's next rank can pass on a short frame early. Frames below
// 64 KiB would cost too much CPU time: 10 to 20 us each, and more while a
// product runs. Frames above 512 KiB, one of each direction, would not fit the
// level-2 cache.
inline size_t DefaultSumSegmentBytes(size_t rows, int ranks, size_t row_bytes) {
  const size_t parts = 2 * static_cast<size_t>(ranks);
  const size_t part_bytes = (rows + parts - 1) / parts * row_bytes;
  return std::clamp<size_t>(part_bytes / 16, size_t{64} << 10,
                            size_t{512} << 10);
}

// Returns the bytes of a frame of a gather that was not tuned. A part is cut
// into three frames, or into fewer so that a frame has about 16 KiB or more.
// The receiver multiplies the rows of a frame while later frames arrive, and
// has few rows left to multiply after the last frame.
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
