// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_FUSED_ROW_SPLIT_H_
#define RINGFLEET_WORKER_FUSED_ROW_SPLIT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ringfleet::worker {

// A step's rows, split over the ranks of a data group. Rank r has the rows from
// floor(r rows / ranks) to floor((r + 1) rows / ranks), which may be none.
struct RowSplit {
  std::vector<uint64_t> offsets;  // [ranks + 1] first rows; the last is rows().
  int rank = 0;                   // This rank.

  // Keeps the memory of `offsets`.
  void Assign(size_t rows, int ranks, int own_rank) {
    rank = own_rank;
    offsets.resize(ranks + 1);
    for (int r = 0; r <= ranks; ++r) offsets[r] = r * rows / ranks;
  }

  // rows() counts all rows. The others describe this rank's range.
  size_t rows() const { return offsets.back(); }
  size_t begin() const { return offsets[rank]; }
  size_t end() const { return offsets[rank + 1]; }
  size_t size() const { return end() - begin(); }
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_FUSED_ROW_SPLIT_H_
