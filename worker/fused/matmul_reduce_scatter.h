// SPDX-License-Identifier: Apache-2.0
// Multiplies and adds up over ranks meanwhile (reduce_scatter_while.h): a
// row-parallel layer whose output is sharded over tokens, the mirror of
// all_gather_matmul.h. Rank r holds X_r [rows, depth], its columns of X, and
// its rows Y_r of the weights; rank d ends with its share of the rows of the
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
  // What a rank's summands are rounded to; the sums are not.
  cluster::Wire wire = cluster::Wire::kF32;
  uint64_t check = 0;  // Travels with the sums.

  FusedTiles tiles;

  // [rows, w->columns()] f32, rows x_stride apart.
  const float* x = nullptr;
  size_t x_stride = 0;
  const kernels::WeightMatrix* w = nullptr;
  // [own rows, w->rows()] f32, row-major.
  float* out = nullptr;
};

// Rows of each half that a rank computes before it hands them on, at first and
// at most: no fewer than a frame carries, whole tiles where the instructions
// have tiles of rows, and no more than share each reading of a panel. Beyond
// the first one, at most half of a half, about: links wait for pieces that grow
// faster than they are sent.
struct ScatterPieces {
  size_t first = 1;
  size_t most = 1;
};
ScatterPieces PiecesOf(const MatmulReduceScatterArgs& args, int ranks,
                       kernels::ProductRows best);

// Errors: those of the Communicator's operations; `out` is then unspecified.
// The deadline includes the products: others wait for their sums.
absl::Status MatmulReduceScatter(const MatmulReduceScatterArgs& args,
                                 cluster::Communicator& communicator,
                                 FusedWorkspace& workspace,
                                 kernels::ThreadPool& pool,
                                 cluster::Deadline deadline);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_FUSED_MATMUL_REDUCE_SCATTER_H_
