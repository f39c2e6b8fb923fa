// SPDX-License-Identifier: Apache-2.0
// Layers whose weights travel in place of activations, as in fully sharded data
// parallelism (ZeRO stage 3, arXiv:1910.02054, section 5.3; PyTorch FSDP,
// arXiv:2304.11277): every rank computes whole layers for its own rows, with
// the other ranks' weights gathered just before they are used and forgotten
// behind. What travels does not grow with the rows, so it pays from about as
// many rows as a layer is wide.
#ifndef RINGFLEET_WORKER_STRATEGIES_WEIGHT_GATHER_H_
#define RINGFLEET_WORKER_STRATEGIES_WEIGHT_GATHER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "cluster/model/model_spec.h"
#include "cluster/model/shard_plan.h"
#include "kernels/products/weight_matrix.h"
#include "worker/fused/row_split.h"
#include "worker/model/layer_context.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// What a rank needs beside weights and cache: the largest of the parts that are
// gathered at a time. The forms are those of LoadOptions.
uint64_t WeightGatherBytes(const cluster::ModelSpec& spec,
                           const cluster::MeshShape& mesh,
                           kernels::WeightForm form,
                           kernels::WeightForm expert_form);

// One transformer layer:
//   x [split.size(), D] f32, the residual stream of this rank's rows; updated
//     in place
// Holds the attention's weights, one dense network or one expert of all ranks
// at a time. Shards are added in rank order, and nothing is rounded between
// ranks. The latent cache is filled for all rows of the step, as always.
// Errors: those of cluster::Communicator::AllGather, with the layer named;
// RESOURCE_EXHAUSTED: the system has no WeightGatherBytes of memory, which the
// load has counted on.
absl::Status WeightGatherLayer(LayerContext& context,
                               const LayerWeights& weights, const Batch& batch,
                               const RowSplit& split, int layer, float* x);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_STRATEGIES_WEIGHT_GATHER_H_
