// SPDX-License-Identifier: Apache-2.0
#include "worker/fused/matmul_reduce_scatter.h"

#include <algorithm>

#include "cluster/collectives/split_rows_frames.h"
#include "kernels/products/panel.h"
#include "worker/fused/output_tiles.h"
#include "worker/fused/reduce_scatter_while.h"

namespace ringfleet::worker {
namespace {

using kernels::Activations;
using kernels::RowRange;

// Elements that a thread quantises in about the time that waking it takes.
constexpr size_t kQuantiseGrain = size_t{1} << 14;

}  // namespace

ScatterPieces PiecesOf(const MatmulReduceScatterArgs& args, int ranks,
                       kernels::ProductRows best) {
  const size_t columns = args.w->rows();
  const size_t frame_elements =
      cluster::SumFrameElements({.rows = args.rows,
                                 .row_size = columns,
                                 .segment_bytes = args.tiles.segment_bytes},
                                ranks, {args.wire, columns});
  const size_t frame_rows =
      std::max<size_t>(frame_elements / std::max<size_t>(columns, 1), 1);
  // The first piece has 1.5 times the rows worth a reading of the weights, in
  // whole frames: it is alone while all CPUs read. Each part has half of them.
  const size_t worth = args.tiles.piece_rows * 3 / 4 / frame_rows * frame_rows;
  const size_t half_rows = args.rows / (2 * static_cast<size_t>(ranks));
  ScatterPieces pieces;
  pieces.first = std::max(
      worth / best.together * best.together,
      (frame_rows + best.together - 1) / best.together * best.together);
  pieces.most =
      std::max(pieces.first, std::min(kernels::kMaxPanelBatch, half_rows / 2) /
                                 best.together * best.together);
  return pieces;
}

absl::Status MatmulReduceScatter(const MatmulReduceScatterArgs& args,
                                 cluster::Communicator& communicator,
                                 FusedWorkspace& workspace,
                                 kernels::ThreadPool& pool,
                                 cluster::Deadline deadline) {
  const size_t depth = args.w->columns();
  const Activations::Form form = kernels::ActivationFormFor(args.w->form());
  const bool quantises = form != Activations::Form::kF32;
  const ScatterPieces pieces =
      PiecesOf(args, communicator.size(), kernels::BestProductRows(form));
  Activations& x = workspace.x;
  if (quantises) {
    x.Reshape(Activations::Form::kInt8, args.rows, depth);
  } else {
    x.Assign(Activations::Form::kF32, args.x, args.rows, depth, args.x_stride,
             pool);
  }
  const auto quantise = [&](RowRange rows) {
    pool.ParallelFor(rows.size(),
                     1 + kQuantiseGrain / std::max<size_t>(depth, 1),
                     [&](size_t begin, size_t end) {
                       for (size_t i = begin; i < end; ++i) {
                         const size_t row = rows.begin + i;
                         x.SetRow(row, args.x + row * args.x_stride);
                       }
                     });
  };
  const auto multiply = [&](absl::Span<const RowRange> rows, float* y,
                            size_t first_y) {
    if (quantises) {
      for (const RowRange& range : rows) quantise(range);
    }
    const FusedOutput output = {
        .w = args.w, .y = y, .y_stride = args.w->rows(), .first_y = first_y};
    MultiplyRanges({&output, 1}, x, rows, args.tiles, pool);
  };
  return ReduceScatterWhile({.rows = args.rows,
                             .columns = args.w->rows(),
                             .wire = args.wire,
                             .check = args.check,
                             .segment_bytes = args.tiles.segment_bytes,
                             .piece_rows = pieces.first,
                             .most_piece_rows = pieces.most,
                             .out = args.out},
                            multiply, communicator, workspace, deadline);
}

}  // namespace ringfleet::worker
