// SPDX-License-Identifier: Apache-2.0
#include "worker/fused/tile_sweeps.h"

#include <algorithm>
#include <numeric>

#include "absl/container/inlined_vector.h"

namespace ringfleet::worker {
namespace {

using cluster::Side;
using kernels::RowRange;

constexpr size_t kUsualParts = 32;  // 16 ranks' parts need no allocation.

template <typename T>
using OfParts = absl::InlinedVector<T, kUsualParts>;

size_t Sum(absl::Span<const size_t> rows) {
  return std::accumulate(rows.begin(), rows.end(), size_t{0});
}

}  // namespace

TileSweeps::TileSweeps(const OutputTiles& tiles,
                       const cluster::SplitRows& parts, int ranks,
                       size_t least_rows, kernels::ProductRows best,
                       PartProgress& progress, std::vector<size_t>& multiplied)
    : tiles_(tiles),
      split_(parts),
      num_parts_(static_cast<size_t>(ranks) * 2),
      least_rows_(std::max<size_t>(least_rows, 1)),
      best_(best),
      progress_(progress),
      multiplied_(multiplied) {
  multiplied_.assign(tiles.size() * num_parts_, 0);
}

RowRange TileSweeps::RowsOf(size_t part) const {
  return split_.Of(
      {static_cast<int>(part / 2), part % 2 == 0 ? Side::kLeft : Side::kRight});
}

absl::Span<size_t> TileSweeps::DoneBy(size_t tile) const {
  return absl::MakeSpan(multiplied_).subspan(tile * num_parts_, num_parts_);
}

size_t TileSweeps::WantedBy(size_t tile) const {
  const size_t done = Sum(DoneBy(tile));
  const size_t left = split_.rows() - done;
  // A small rest is not left alone.
  return done + (2 * left < 3 * least_rows_ ? left : least_rows_);
}

size_t TileSweeps::Wanted() const {
  size_t wanted = 0;
  for (size_t tile = 0; tile < tiles_.size(); ++tile) {
    if (Sum(DoneBy(tile)) == split_.rows()) continue;
    const size_t rows = WantedBy(tile);
    wanted = wanted == 0 ? rows : std::min(wanted, rows);
  }
  return wanted;
}

// Leaves rows that do not fill a tile of AMX for a later visit, unless too few
// rows would remain for this one. A tile that is not full takes as long as a
// full one, and rows on their way may fill it. A tile with rows of two parts
// takes longer.
void TileSweeps::LeaveIncompleteTiles(absl::Span<const size_t> done,
                                      absl::Span<size_t> come) const {
  OfParts<size_t> whole(come.begin(), come.end());
  for (size_t part = 0; part < num_parts_; ++part) {
    if (come[part] == RowsOf(part).size()) continue;
    const size_t rows = come[part] - done[part];
    whole[part] = done[part] + rows / best_.together * best_.together;
  }
  if (Sum(whole) < Sum(done) + least_rows_) return;
  std::copy(whole.begin(), whole.end(), come.begin());
}

void TileSweeps::Visit(size_t tile) {
  const absl::Span<size_t> done = DoneBy(tile);
  OfParts<size_t> come(num_parts_);
  const size_t rows = progress_.Get(absl::MakeSpan(come));
  if (rows < WantedBy(tile)) return;
  if (rows < split_.rows()) LeaveIncompleteTiles(done, absl::MakeSpan(come));
  OfParts<RowRange> ranges;
  for (size_t part = 0; part < num_parts_; ++part) {
    if (come[part] == done[part]) continue;
    const size_t first = RowsOf(part).begin;
    const RowRange range = {first + done[part], first + come[part]};
    if (!ranges.empty() && ranges.back().end == range.begin) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back(range);
    }
  }
  if (ranges.empty()) return;
  tiles_.Multiply(tile, ranges);
  std::copy(come.begin(), come.end(), done.begin());
}

void TileSweeps::Sweep(kernels::ThreadPool& pool) {
  pool.ParallelFor(tiles_.size(), tiles_.Grain(least_rows_),
                   [&](size_t begin, size_t end) {
                     for (size_t tile = begin; tile < end; ++tile) {
                       Visit(tile);
                     }
                   });
}

}  // namespace ringfleet::worker
