// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_FUSED_ROW_SPLIT_H_
#define RINGFLEET_WORKER_FUSED_ROW_SPLIT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ringfleet::worker {

// A step's rows dealt out over the ranks of a data group: rank r has rows
// [offsets[r], offsets[r + 1]), floor((r + 1) rows / ranks) - floor(r rows /
// ranks) of them, which may be none.
struct RowSplit {
  std::vector<uint64_t> offsets;  // [ranks + 1]
  int rank = 0;

  // Keeps the memory of `offsets`.
  void Assign(size_t rows, int ranks, int own_rank) {
    rank = own_rank;
    offsets.resize(ranks + 1);
    for (int r = 0; r <= ranks; ++r) offsets[r] = r * rows / ranks;
  }

  size_t rows() const { return offsets.back(); }
  size_t begin() const { return offsets[rank]; }
  size_t end() const { return offsets[rank + 1]; }
  size_t size() const { return end() - begin(); }
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_FUSED_ROW_SPLIT_H_
