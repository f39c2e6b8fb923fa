// SPDX-License-Identifier: Apache-2.0
// Multiplies and meanwhile adds up over ranks (reduce_scatter_while.h). This is
// a row-parallel layer whose output is sharded over tokens, the mirror of
// all_gather_matmul.h. Rank r holds X_r [rows, depth], its columns of X, and
// Y_r, its rows of the weights. Rank d ends with its share of the rows of the
// sum of all X_r Y_r.
#ifndef RINGFLEET_WORKER_FUSED_MATMUL_REDUCE_SCATTER_H_
#define RINGFLEET_WORKER_FUSED_MATMUL_REDUCE_SCATTER_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "cluster/collectives/communicator.h"
#include "cluster/process/deadline.h"
#include "kernels/products/matmul.h"
#include "kernels/thread_pool.h"
#include "worker/fused/fused_product.h"

namespace ringfleet::worker {

struct MatmulReduceScatterArgs {
  // Equal on all ranks, as is the number of outputs of the weights.
  size_t rows = 0;
  // Type that summands are rounded to. Sums are not rounded.
  cluster::Wire wire = cluster::Wire::kF32;
  uint64_t check = 0;  // Travels with the sums; ranks that differ fail.

  FusedTiles tiles;

  // [rows, w->columns()] f32, rows x_stride apart.
  const float* x = nullptr;
  size_t x_stride = 0;
  const kernels::WeightMatrix* w = nullptr;
  // [own rows, w->rows()] f32, row-major.
  float* out = nullptr;
};

// Rows of each part of a shard that a rank computes before it hands them on.
// Pieces grow from `first` to `most`. A piece has at least the rows that a
// frame carries, and at most the rows that share one reading of a panel. Where
// the instructions have tiles of rows, a piece has whole tiles. Pieces after
// the first have at most about half of a part: links starve when pieces grow
// faster than frames leave.
struct ScatterPieces {
  size_t first = 1;
  size_t most = 1;
};
ScatterPieces PiecesOf(const MatmulReduceScatterArgs& args, int ranks,
                       kernels::ProductRows best);

// Multiplies and reduces. The result has the bits of a product followed by a
// ReduceScatter (reduce_scatter_while.h). One thread calls it for a workspace
// at a time. All ranks call it together.
//
// Errors: those of Communicator::StreamingReduceScatter. `out` is unspecified
// after an error. `deadline` includes the products, because other ranks wait
// for their sums.
absl::Status MatmulReduceScatter(const MatmulReduceScatterArgs& args,
                                 cluster::Communicator& communicator,
                                 FusedWorkspace& workspace,
                                 kernels::ThreadPool& pool,
                                 cluster::Deadline deadline);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_FUSED_MATMUL_REDUCE_SCATTER_H_
