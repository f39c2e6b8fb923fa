// SPDX-License-Identifier: Apache-2.0
// Computes rows and meanwhile adds them up over ranks: the end of a
// row-parallel layer whose output is sharded over tokens.
//
// World size T. Every rank has a summand for all rows, and rank d ends with its
// share of the rows of the sum. In step s = 0 .. T - 1 rank r, indices modulo
// T,
//   computes its summands of (r - 1 - s).L and (r + 1 + s).R
//   sends them to ranks r - 1 - s and r + 1 + s, frame by frame, while it
//     computes the next parts                                       s <= T - 2
// where L and R are the two parts of a shard (SplitRows). The own rows come
// last. Sums are made in the order of ranks and have the bits of a
// ReduceScatter after the computation, unless the ring is chosen (see
// Communicator::StreamingReduceScatter).
#ifndef RINGFLEET_WORKER_FUSED_REDUCE_SCATTER_WHILE_H_
#define RINGFLEET_WORKER_FUSED_REDUCE_SCATTER_WHILE_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/communicator.h"
#include "cluster/process/deadline.h"
#include "cluster/wire/wire_format.h"
#include "kernels/products/row_range.h"
#include "worker/fused/fused_product.h"

namespace ringfleet::worker {

struct ReduceScatterWhileArgs {
  // Equal on all ranks.
  size_t rows = 0;
  size_t columns = 0;
  // Type that summands are rounded to. Sums are not rounded.
  cluster::Wire wire = cluster::Wire::kF32;
  uint64_t check = 0;        // Travels with the sums; ranks that differ fail.
  size_t segment_bytes = 0;  // As in FusedTiles.

  // Rows of each part that are computed before they are handed on. The first
  // piece has `piece_rows`, so that sums are under way soon. Each next piece
  // has twice as many, up to `most_piece_rows`. The last piece of a part has up
  // to half as many again. Own rows, which nobody waits for, are one piece.
  size_t piece_rows = 0;
  size_t most_piece_rows = 0;

  // [own rows, columns] f32, row-major.
  float* out = nullptr;
};

// Computes this rank's summands for `rows`, one or two ranges, ascending. The
// summand of row i goes to y + (i - first_y) * columns, f32.
using ComputeRows = absl::FunctionRef<void(
    absl::Span<const kernels::RowRange> rows, float* y, size_t first_y)>;

// Computes and reduces. `compute` is called by the calling thread only. One
// thread calls it for a workspace at a time. All ranks call it together.
//
// Errors: those of Communicator::StreamingReduceScatter. `out` is unspecified
// after an error. `deadline` includes the computation, because other ranks wait
// for their sums.
absl::Status ReduceScatterWhile(const ReduceScatterWhileArgs& args,
                                ComputeRows compute,
                                cluster::Communicator& communicator,
                                FusedWorkspace& workspace,
                                cluster::Deadline deadline);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_FUSED_REDUCE_SCATTER_WHILE_H_
