// SPDX-License-Identifier: Apache-2.0
// Sequence-parallel layers (Korthikanti et al., "Reducing Activation
// Recomputation in Large Transformer Models", arXiv:2205.05198, section 4.2.2;
// here with MLA's latents). Between the attention and the feed-forward part
// each rank holds the residual stream of its own rows only. Norms, latents and
// routes of a row depend on no other row, so only the rank that holds the row
// computes them. Latents travel in place of hidden states. Rows travel in the
// form that the products read: int8 codes travel as int8.
#ifndef RINGFLEET_WORKER_STRATEGIES_SEQUENCE_PARALLEL_H_
#define RINGFLEET_WORKER_STRATEGIES_SEQUENCE_PARALLEL_H_

#include "absl/status/status.h"
#include "worker/model/step_strategy.h"

namespace ringfleet::worker {

// The strategy in which each rank holds its own rows between products. A layer
// has four exchanges:
//   1. All-gather latents and cache rows.
//   2. Reduce-scatter the attention's output product.
//   3. All-gather normed activations and routes.
//   4. Reduce-scatter the feed-forward part.
//
// With at least LayerContext::fuse_rows rows per rank, all four exchanges run
// beside the products next to them (all_gather_matmul.h,
// reduce_scatter_while.h). Layers of experts have two exceptions. Only products
// of the shared expert run beside exchange 3. Exchange 4 runs beside products
// only if cluster::ExpertsHaveRows returns true.
//
// The result has the bits of Replicated's result, unless the table of
// algorithms chooses a ring for one of the two strategies.
class SequenceParallel final : public StepStrategy {
 public:
  absl::Status Forward(LayerContext& context,
                       const StepPass& pass) const override;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_STRATEGIES_SEQUENCE_PARALLEL_H_
