// SPDX-License-Identifier: Apache-2.0
// Gathers rows from all ranks and multiplies them meanwhile: a column-parallel
// layer whose input is sharded over tokens.
//
// World size T; rank r holds X_r, its share of the rows of X [rows, columns],
// and its columns Y_r of the weights; it ends with O_r = X Y_r, all rows. In
// step s = 0 .. T + 1 rank r, indices modulo T,
//   sends     (r + s).L to the left and (r - s).R to the right     s <= T - 2
//   multiplies (r + s - 1).L and (r - s + 1).R                 1 <= s <= T
//   has stored the outputs of what step s - 1 multiplied           s >= 2
// where L and R are the halves of a shard (RowHalves): the own rows first,
// then what arrives, so that T - 1 transfers hide behind T products. This is
// the order of a published TPU kernel (vllm-project/tpu-inference,
// kernels/collectives/all_gather_matmul.py). Its double buffers and semaphores
// have no counterpart here: rows are multiplied where they were received, one
// tile of sums at a time is stored by the thread that made it, and a product
// begins with whatever rows of its step are there (FusedTiles::piece_rows). A
// frame is passed on when it arrives, by the communication thread, whatever the
// products do.
#ifndef RINGFLEET_WORKER_ALL_GATHER_MATMUL_H_
#define RINGFLEET_WORKER_ALL_GATHER_MATMUL_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/communicator.h"
#include "cluster/deadline.h"
#include "kernels/activations.h"
#include "kernels/thread_pool.h"
#include "worker/fused_product.h"

namespace ringfleet::worker {

struct AllGatherMatmulArgs {
  // Equal on all ranks.
  size_t rows = 0;
  size_t columns = 0;
  size_t attached_columns = 0;
  kernels::Activations::Form form = kernels::Activations::Form::kF32;
  // Of float weights' rows and of what is attached; rows for integer weights
  // travel as the codes that the products read.
  cluster::Wire wire = cluster::Wire::kF32;
  FusedTiles tiles;

  // [own rows, columns] f32, this rank's share of X, row-major.
  const float* x = nullptr;
  // Products of all rows, each with weights of `columns` inputs and of `form`;
  // y [rows, ...], rows in order. None: the rows are only gathered.
  absl::Span<const FusedOutput> products;
  // Gathered beside x and multiplied by nothing: [own rows, attached_columns]
  // f32, row-major, and where those of all ranks go, [rows, attached_columns].
  const float* attached = nullptr;
  float* all_attached = nullptr;
};

// On return every product is complete, workspace.x has all rows (for products
// to come), and `all_attached` is filled. Products have the same bits as if the
// rows had been gathered first, on every rank. Rows that the wire rounds are
// rounded on their own rank too. `observer` may be null.
//
// Errors: those of the Communicator's operations; the outputs are then
// unspecified. The deadline is that of the communication.
absl::Status AllGatherMatmul(const AllGatherMatmulArgs& args,
                             cluster::Communicator& communicator,
                             FusedWorkspace& workspace,
                             kernels::ThreadPool& pool,
                             cluster::Deadline deadline,
                             FusedObserver* observer = nullptr);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_ALL_GATHER_MATMUL_H_
