// SPDX-License-Identifier: Apache-2.0
#include "worker/fused/output_tiles.h"

#include <algorithm>

#include "kernels/products/matmul.h"

namespace ringfleet::worker {
namespace {

using kernels::Activations;
using kernels::RowRange;

kernels::MatMulRangesArgs TileArgs(const FusedOutput& output,
                                   const Activations& x,
                                   absl::Span<const RowRange> ranges,
                                   const FusedTiles& tiles) {
  return {.w = output.w,
          .x = &x,
          .ranges = ranges,
          .y = output.y,
          .y_stride = output.y_stride,
          .first_y = output.first_y,
          .tile_columns = tiles.tile_columns};
}

size_t TilesOf(const FusedOutput& output, const Activations& x,
               const FusedTiles& tiles) {
  return kernels::NumTiles(TileArgs(output, x, {}, tiles));
}

}  // namespace

OutputTiles::OutputTiles(absl::Span<const FusedOutput> outputs,
                         const Activations& x, const FusedTiles& tiles)
    : outputs_(outputs), x_(x), tiles_(tiles) {
  for (const FusedOutput& output : outputs) {
    size_ += TilesOf(output, x, tiles);
  }
}

size_t OutputTiles::Grain(size_t rows) const {
  size_t grain = 1;
  for (const FusedOutput& output : outputs_) {
    const size_t tiles = std::max<size_t>(TilesOf(output, x_, tiles_), 1);
    grain = std::max(grain, kernels::ProductGrain(output.w->rows() / tiles *
                                                  output.w->columns() * rows));
  }
  return grain;
}

void OutputTiles::Multiply(size_t tile,
                           absl::Span<const RowRange> ranges) const {
  const FusedOutput* output = outputs_.data();
  for (size_t tiles; tile >= (tiles = TilesOf(*output, x_, tiles_)); ++output) {
    tile -= tiles;
  }
  kernels::MultiplyTile(TileArgs(*output, x_, ranges, tiles_), tile);
}

void MultiplyRanges(absl::Span<const FusedOutput> outputs, const Activations& x,
                    absl::Span<const RowRange> ranges, const FusedTiles& tiles,
                    kernels::ThreadPool& pool) {
  size_t rows = 0;
  for (const RowRange range : ranges) rows += range.size();
  if (rows == 0) return;
  const OutputTiles all(outputs, x, tiles);
  pool.ParallelFor(all.size(), all.Grain(rows), [&](size_t begin, size_t end) {
    for (size_t tile = begin; tile < end; ++tile) all.Multiply(tile, ranges);
  });
}

}  // namespace ringfleet::worker
