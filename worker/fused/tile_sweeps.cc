// SPDX-License-Identifier: Apache-2.0
#include "worker/fused/tile_sweeps.h"

#include <algorithm>
#include <numeric>

#include "absl/container/inlined_vector.h"

namespace ringfleet::worker {
namespace {

using cluster::Half;
using cluster::ShardHalf;
using kernels::RowRange;

constexpr size_t kUsualHalves = 32;  // Of 16 ranks: no more, no allocation.

template <typename T>
using OfHalves = absl::InlinedVector<T, kUsualHalves>;

size_t Sum(absl::Span<const size_t> rows) {
  return std::accumulate(rows.begin(), rows.end(), size_t{0});
}

}  // namespace

TileSweeps::TileSweeps(const OutputTiles& tiles,
                       const cluster::RowHalves& halves, int ranks,
                       size_t least_rows, kernels::ProductRows best,
                       HalfProgress& progress, std::vector<size_t>& multiplied)
    : tiles_(tiles),
      halves_(halves),
      num_halves_(static_cast<size_t>(ranks) * 2),
      least_rows_(std::max<size_t>(least_rows, 1)),
      best_(best),
      progress_(progress),
      multiplied_(multiplied) {
  multiplied_.assign(tiles.size() * num_halves_, 0);
}

RowRange TileSweeps::RowsOf(size_t half) const {
  return halves_.Of(
      {static_cast<int>(half / 2), half % 2 == 0 ? Half::kLeft : Half::kRight});
}

absl::Span<size_t> TileSweeps::DoneBy(size_t tile) const {
  return absl::MakeSpan(multiplied_).subspan(tile * num_halves_, num_halves_);
}

size_t TileSweeps::WantedBy(size_t tile) const {
  const size_t done = Sum(DoneBy(tile));
  const size_t left = halves_.rows() - done;
  // A small rest is not left alone.
  return done + (2 * left < 3 * least_rows_ ? left : least_rows_);
}

size_t TileSweeps::Wanted() const {
  size_t wanted = 0;
  for (size_t tile = 0; tile < tiles_.size(); ++tile) {
    if (Sum(DoneBy(tile)) == halves_.rows()) continue;
    const size_t rows = WantedBy(tile);
    wanted = wanted == 0 ? rows : std::min(wanted, rows);
  }
  return wanted;
}

bool TileSweeps::Complete(ShardHalf half) const {
  for (size_t tile = 0; tile < tiles_.size(); ++tile) {
    if (DoneBy(tile)[HalfProgress::Index(half)] < halves_.Of(half).size()) {
      return false;
    }
  }
  return true;
}

// Leaves what does not fill AMX's tiles, which take as long as full ones and
// may be filled by rows that are on their way, if so many rows remain as are
// worth a visit. Tiles with rows of two halves take longer.
void TileSweeps::LeaveIncompleteTiles(absl::Span<const size_t> done,
                                      absl::Span<size_t> come) const {
  OfHalves<size_t> whole(come.begin(), come.end());
  for (size_t half = 0; half < num_halves_; ++half) {
    if (come[half] == RowsOf(half).size()) continue;
    const size_t rows = come[half] - done[half];
    whole[half] = done[half] + rows / best_.together * best_.together;
  }
  if (Sum(whole) < Sum(done) + least_rows_) return;
  std::copy(whole.begin(), whole.end(), come.begin());
}

void TileSweeps::Visit(
    size_t tile, absl::FunctionRef<void(absl::Span<const size_t>)> begins) {
  const absl::Span<size_t> done = DoneBy(tile);
  OfHalves<size_t> come(num_halves_);
  const size_t rows = progress_.Get(absl::MakeSpan(come));
  if (rows < WantedBy(tile)) return;
  if (rows < halves_.rows()) LeaveIncompleteTiles(done, absl::MakeSpan(come));
  OfHalves<RowRange> ranges;
  for (size_t half = 0; half < num_halves_; ++half) {
    if (come[half] == done[half]) continue;
    const size_t first = RowsOf(half).begin;
    const RowRange range = {first + done[half], first + come[half]};
    if (!ranges.empty() && ranges.back().end == range.begin) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back(range);
    }
  }
  if (ranges.empty()) return;
  begins(come);
  tiles_.Multiply(tile, ranges);
  std::copy(come.begin(), come.end(), done.begin());
}

void TileSweeps::Sweep(
    kernels::ThreadPool& pool,
    absl::FunctionRef<void(absl::Span<const size_t>)> begins) {
  pool.ParallelFor(tiles_.size(), tiles_.Grain(least_rows_),
                   [&](size_t begin, size_t end) {
                     for (size_t tile = begin; tile < end; ++tile) {
                       Visit(tile, begins);
                     }
                   });
}

}  // namespace ringfleet::worker
