// SPDX-License-Identifier: Apache-2.0
// Gathers rows from all ranks and multiplies them meanwhile: a column-parallel
// layer whose input is sharded over tokens.
//
// World size T. Rank r holds X_r, its share of the rows of X [rows, columns],
// and Y_r, its columns of the weights. It ends with O_r = X Y_r, all rows. In
// step s = 0 .. T + 1 rank r, indices modulo T,
//   sends      (r + s).L to the left and (r - s).R to the right     s <= T - 2
//   multiplies (r + s - 1).L and (r - s + 1).R                  1 <= s <= T
//   has stored the outputs of the rows of step s - 1                s >= 2
// where L and R are the two parts of a shard (SplitRows). Own rows come first,
// then the rows that arrive, so that T - 1 transfers hide behind T products.
// The order is the one of a published TPU kernel (vllm-project/tpu-inference,
// kernels/collectives/all_gather_matmul.py). Its double buffers and semaphores
// have no counterpart here:
//   - Rows are multiplied where they were received.
//   - A thread stores the tile of sums that it has made.
//   - A tile is multiplied by all rows that have come when its turn comes, rows
//     of later steps included (tile_sweeps.h).
//   - The communication thread passes a frame on when it arrives, whatever the
//     products do.
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

// Bytes that travel with each row beside the columns that are multiplied. Both
// functions are called by several threads at a time, for different rows.
class RowAttachment {
 public:
  // Writes the bytes of this rank's i-th row.
  virtual void Store(size_t i, char* bytes) const = 0;
  // Takes the bytes of row `row`, counted over all ranks, when the row has
  // come. Own rows come too.
  virtual void Load(size_t row, const char* bytes) = 0;

 protected:
  ~RowAttachment() = default;
};

struct AllGatherMatmulArgs {
  // Equal on all ranks.
  size_t rows = 0;
  size_t attached_bytes = 0;

  FusedTiles tiles;

  // [own rows, columns], this rank's share of X. Form and columns are equal on
  // all ranks. Rows travel as the products read them: as float32, or as int8
  // codes with scales, 1 + 1/16 bytes an element.
  const kernels::Activations* x = nullptr;
  // Products of all rows, each with weights of x's columns and form. Outputs
  // are y [rows, ...], rows in order. Empty: rows are only gathered.
  absl::Span<const FusedOutput> products;
  RowAttachment* attachment = nullptr;  // Not read if attached_bytes is 0.
};

// Gathers and multiplies. On return every product is complete, workspace.x has
// all rows for later products, and the attachment has been loaded for all rows.
// Products have the bits of a gather followed by a product, on every rank. One
// thread calls it for a workspace at a time. All ranks call it together.
//
// Errors: those of Communicator::StreamingAllGather, which `deadline` bounds.
// Outputs are unspecified after an error.
absl::Status AllGatherMatmul(const AllGatherMatmulArgs& args,
                             cluster::Communicator& communicator,
                             FusedWorkspace& workspace,
                             kernels::ThreadPool& pool,
                             cluster::Deadline deadline);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_FUSED_ALL_GATHER_MATMUL_H_
