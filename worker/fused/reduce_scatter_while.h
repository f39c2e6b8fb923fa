// SPDX-License-Identifier: Apache-2.0
// Computes rows and meanwhile adds them up over ranks: what row-parallel layers
// whose output is sharded over tokens end with.
//
// World size T; every rank has a summand of all rows, and rank d ends with its
// share of the rows of the sum. In step s = 0 .. T - 1 rank r, indices modulo
// T, computes its summands of (r - 1 - s).L and (r + 1 + s).R and, but in the
// last step, sends them to ranks r - 1 - s and r + 1 + s, segment by segment as
// the rows are there, while it computes the next halves. The own halves come
// last. Sums have the bits of a ReduceScatter that computed first: they are
// made in the order of ranks, unless the ring is chosen (see
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
  // What a rank's summands are rounded to; the sums are not.
  cluster::Wire wire = cluster::Wire::kF32;
  uint64_t check = 0;        // Travels with the sums.
  size_t segment_bytes = 0;  // As in FusedTiles.

  // Rows of each half that are computed before they are handed on: `piece_rows`
  // at first, so that sums are under way soon, then twice as many and so on, up
  // to `most_piece_rows`. The last piece of a half has up to half as
  // many again. The own halves, which nobody waits for, are one piece.
  size_t piece_rows = 0;
  size_t most_piece_rows = 0;

  // [own rows, columns] f32, row-major.
  float* out = nullptr;
};

// Computes this rank's summand of `rows`, one or two ranges, ascending; that of
// row i goes to y + (i - first_y) * columns, f32.
using ComputeRows = absl::FunctionRef<void(
    absl::Span<const kernels::RowRange> rows, float* y, size_t first_y)>;

// Errors: those of the Communicator's operations; `out` is then unspecified.
// The deadline includes the computation: others wait for their sums.
absl::Status ReduceScatterWhile(const ReduceScatterWhileArgs& args,
                                ComputeRows compute,
                                cluster::Communicator& communicator,
                                FusedWorkspace& workspace,
                                cluster::Deadline deadline);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_FUSED_REDUCE_SCATTER_WHILE_H_
