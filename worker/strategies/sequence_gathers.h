// SPDX-License-Identifier: Apache-2.0
// What a sequence-parallel layer gathers from all ranks, and the products that
// need not wait until all of it has come (all_gather_matmul.h).
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

// Whether this step's exchanges run beside products. With fewer rows a rank
// would read its weights once more for each piece, for too few of them.
bool Fuses(const LayerContext& context, const RowSplit& split);

// Every rank gets the cache rows of all rows, in the cache, and the products of
// their query latents and its part of q_b, in workspace.q.
//   query_x [split.size(), rq]
absl::Status GatherQueries(LayerContext& context,
                           const kernels::WeightMatrix& q_b, const Batch& batch,
                           const RowSplit& split, int layer,
                           const kernels::Activations& query_x);

// Normed activations of all rows of a step.
struct GatheredNormed {
  const kernels::Activations* x = nullptr;  // [split.rows(), D]
  EarlyProducts early;
};

// Every rank gets the normed activations of all rows, which are this rank's in
// workspace.x, in a layer of experts with their routes, in the workspace.
// Products by gate and up that all rows go through, of a dense layer or of the
// shared expert, begin with the rows that are there; which rows a routed expert
// has is known when all have come.
absl::StatusOr<GatheredNormed> GatherNormed(LayerContext& context,
                                            const LayerWeights& weights,
                                            const RowSplit& split);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_STRATEGIES_SEQUENCE_GATHERS_H_
