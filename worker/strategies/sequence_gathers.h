// SPDX-License-Identifier: Apache-2.0
// The gathers of a sequence-parallel layer. The products of gathered rows begin
// before all rows have arrived (all_gather_matmul.h).
#ifndef RINGFLEET_WORKER_STRATEGIES_SEQUENCE_GATHERS_H_
#define RINGFLEET_WORKER_STRATEGIES_SEQUENCE_GATHERS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/products/activations.h"
#include "kernels/products/weight_matrix.h"
#include "worker/fused/row_split.h"
#include "worker/model/batch.h"
#include "worker/model/layer_context.h"
#include "worker/model/moe_layer.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// Returns whether the exchanges of this step run beside products: if each rank
// has at least LayerContext::fuse_rows rows. With fewer rows, the time to read
// weights again for every piece of rows exceeds the time that overlap saves.
bool Fuses(const LayerContext& context, const RowSplit& split);

// Gathers the cache rows and the query latents of all ranks. Writes all cache
// rows to the cache of `layer`. Writes the products of all query latents and
// this rank's q_b to workspace.q [split.rows(), heads, dn + dr].
//   query_x [split.size(), rq]: this rank's rows, as MakeLatents returns them
absl::Status GatherQueries(LayerContext& context,
                           const kernels::WeightMatrix& q_b, const Batch& batch,
                           const RowSplit& split, int layer,
                           const kernels::Activations& query_x);

// The normed activations of all rows of a step, and the products that were
// computed during the gather.
struct GatheredNormed {
  const kernels::Activations* x = nullptr;  // [split.rows(), D]
  EarlyProducts early;
};

// Gathers the normed activations of all rows. Requires this rank's rows in
// workspace.x. A layer of experts also gathers the routes into the workspace.
// The gate and up products of a dense layer, or of the shared expert, are
// computed for the rows that have arrived while the others travel. Products of
// routed experts do not begin here, because their rows are known only when all
// routes have arrived.
// Errors: those of the collectives; DATA_LOSS of CheckRoutes.
absl::StatusOr<GatheredNormed> GatherNormed(LayerContext& context,
                                            const LayerWeights& weights,
                                            const RowSplit& split);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_STRATEGIES_SEQUENCE_GATHERS_H_
