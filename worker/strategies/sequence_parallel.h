// SPDX-License-Identifier: Apache-2.0
// Sequence-parallel layers (Korthikanti et al., "Reducing Activation
// Recomputation in Large Transformer Models", arXiv:2205.05198, section 4.2.2;
// here with MLA's latents): between attention and feed-forward part each rank
// holds the residual stream of its own rows only. What depends on a row alone
// (norms, latents, routing) is computed once in the group and not on every
// rank, and what travels is small: latents in place of hidden states, both as
// the products read them, so that int8 codes travel as int8.
#ifndef RINGFLEET_WORKER_STRATEGIES_SEQUENCE_PARALLEL_H_
#define RINGFLEET_WORKER_STRATEGIES_SEQUENCE_PARALLEL_H_

#include "absl/status/status.h"
#include "worker/fused/row_split.h"
#include "worker/model/layer_context.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// One transformer layer, with an all-gather of latents and cache rows, a
// reduce-scatter after the attention's output product, an all-gather of normed
// activations and routes, and a reduce-scatter after the feed-forward part.
//   x [split.size(), D] f32, the residual stream of this rank's rows; updated
//     in place
//
// From LayerContext.fuse_rows rows per rank on both gathers (of a layer of
// experts, beside the shared one's products) and both reductions (of experts'
// sums where cluster::ExpertsHaveRows) run beside the products next to them
// (all_gather_matmul.h, reduce_scatter_while.h). Either way rows get the same
// bits as from DecoderLayer wherever both add in rank order: not where the
// table of algorithms has a ring for one of them.
//
// Errors: those of cluster::Communicator, with the layer named.
absl::Status SequenceParallelLayer(LayerContext& context,
                                   const LayerWeights& weights,
                                   const Batch& batch, const RowSplit& split,
                                   int layer, float* x);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_STRATEGIES_SEQUENCE_PARALLEL_H_
