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
// where L and R are the halves of a shard (SplitRows): the own rows first,
// then what arrives, so that T - 1 transfers hide behind T products. This is
// the order of a published TPU kernel (vllm-project/tpu-inference,
// kernels/collectives/all_gather_matmul.py). Its double buffers and semaphores
// have no counterpart here: rows are multiplied where they were received, one
// tile of sums at a time is stored by the thread that made it, and each tile is
// multiplied by all rows that are there in its turn (tile_sweeps.h), also by
// those of later steps. A frame is passed on when it arrives, by the
// communication thread, whatever the products do.
#ifndef RINGFLEET_WORKER_FUSED_ALL_GATHER_MATMUL_H_
#define RINGFLEET_WORKER_FUSED_ALL_GATHER_MATMUL_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/communicator.h"
#include "cluster/process/deadline.h"
#include "kernels/products/activations.h"
#include "kernels/thread_pool.h"
#include "worker/fused/fused_product.h"

namespace ringfleet::worker {

// What travels with rows beside the columns that are multiplied.
class RowAttachment {
 public:
  // Writes that of this rank's i-th row, or takes that of row `row`, one of
  // this rank's or another's, when the row has come. Called by several threads
  // at a time, for different rows.
  virtual void Store(size_t i, char* bytes) const = 0;
  virtual void Load(size_t row, const char* bytes) = 0;

 protected:
  ~RowAttachment() = default;
};

struct AllGatherMatmulArgs {
  // Equal on all ranks.
  size_t rows = 0;
  size_t attached_bytes = 0;

  FusedTiles tiles;

  // [own rows, columns], this rank's share of X; form and columns are equal on
  // all ranks. Rows travel as the products read them: float32, or codes and
  // scales, a byte and a thirty-second for each element.
  const kernels::Activations* x = nullptr;
  // Products of all rows, each with weights of x's columns and form;
  // y [rows, ...], rows in order. None: the rows are only gathered.
  absl::Span<const FusedOutput> products;
  RowAttachment* attachment = nullptr;  // Not read if attached_bytes is 0.
};

// On return every product is complete, workspace.x has all rows (for products
// to come), and the attachment those of all. Products have the same bits as if
// the rows had been gathered first, on every rank.
//
// Errors: those of the Communicator's operations; the outputs are then
// unspecified. The deadline is that of the communication.
absl::Status AllGatherMatmul(const AllGatherMatmulArgs& args,
                             cluster::Communicator& communicator,
                             FusedWorkspace& workspace,
                             kernels::ThreadPool& pool,
                             cluster::Deadline deadline);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_FUSED_ALL_GATHER_MATMUL_H_
