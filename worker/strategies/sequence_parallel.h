// SPDX-License-Identifier: Apache-2.0
// Sequence-parallel layers (Korthikanti et al., "Reducing Activation
// Recomputation in Large Transformer Models", arXiv:2205.05198, section 4.2.2;
// here with MLA's latents). Between the attention and the feed-forward part
// each rank holds the residual stream of its own rows only. Norms, latents and
// routing depend on a row alone, so one rank of the data group computes them,
// not every rank. Latents travel in place of hidden states. Rows travel as the
// products read them, so int8 codes travel as int8.
#ifndef RINGFLEET_WORKER_STRATEGIES_SEQUENCE_PARALLEL_H_
#define RINGFLEET_WORKER_STRATEGIES_SEQUENCE_PARALLEL_H_

#include "absl/status/status.h"
#include "worker/model/step_strategy.h"

namespace ringfleet::worker {

// A layer all-gathers latents and cache rows, reduce-scatters after the
// attention's output product, all-gathers normed activations and routes, and
// reduce-scatters after the feed-forward part.
//
// From LayerContext.fuse_rows rows per rank, both gathers and both reductions
// run beside the products next to them (all_gather_matmul.h,
// reduce_scatter_while.h). In a layer of experts, only the shared expert's
// products run beside the second gather, and the second reduction is fused
// only where cluster::ExpertsHaveRows. Rows get the same bits as from
// Replicated, unless the table of algorithms has a ring for one of the two.
class SequenceParallel final : public StepStrategy {
 public:
  absl::Status Forward(LayerContext& context,
                       const StepPass& pass) const override;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_STRATEGIES_SEQUENCE_PARALLEL_H_
