// SPDX-License-Identifier: Apache-2.0
// The gathers of a sequence-parallel layer, and the products that begin before
// all rows have come (all_gather_matmul.h).
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

// Returns whether this step's exchanges run beside products. They do from
// LayerContext::fuse_rows rows per rank on. With fewer rows, a rank would read
// its weights again for pieces that are too small.
bool Fuses(const LayerContext& context, const RowSplit& split);

// Gathers the cache rows and the query latents of all rows. On return the cache
// of `layer` holds all rows, and workspace.q [split.rows(), heads, dn + dr] the
// products of their query latents and this rank's q_b.
//   query_x [split.size(), rq]: this rank's rows, as MakeLatents returns them
absl::Status GatherQueries(LayerContext& context,
                           const kernels::WeightMatrix& q_b, const Batch& batch,
                           const RowSplit& split, int layer,
                           const kernels::Activations& query_x);

// The normed activations of all rows of a step, and the products that began
// with them.
struct GatheredNormed {
  const kernels::Activations* x = nullptr;  // [split.rows(), D]
  EarlyProducts early;
};

// Gathers the normed activations of all rows. This rank's rows are in
// workspace.x. A layer of experts also gathers the routes, in the workspace.
// Products of gate and up that all rows go through, those of a dense layer or
// of the shared expert, begin with the rows that have come. Routed experts
// wait: their rows are known when all routes have come. Errors: those of the
// collectives; DATA_LOSS of CheckRoutes.
absl::StatusOr<GatheredNormed> GatherNormed(LayerContext& context,
                                            const LayerWeights& weights,
                                            const RowSplit& split);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_STRATEGIES_SEQUENCE_GATHERS_H_
