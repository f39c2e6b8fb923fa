// SPDX-License-Identifier: Apache-2.0
// Layers whose weights travel in place of activations, as in fully sharded data
// parallelism (ZeRO stage 3, arXiv:1910.02054, section 5.3; PyTorch FSDP,
// arXiv:2304.11277). Every rank computes whole layers for its own rows. A rank
// gathers the other ranks' weights just before it uses them, and frees the
// gathered weights afterwards. The traffic does not depend on the number of
// rows. Gathered weights are less traffic than activations if a step has more
// than about hidden_size rows.
#ifndef RINGFLEET_WORKER_STRATEGIES_WEIGHT_GATHER_H_
#define RINGFLEET_WORKER_STRATEGIES_WEIGHT_GATHER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "cluster/model/model_spec.h"
#include "cluster/model/shard_plan.h"
#include "kernels/products/weight_matrix.h"
#include "worker/model/step_strategy.h"

namespace ringfleet::worker {

// Returns the bytes that a rank needs for gathered weights, besides its own
// weights and cache. The result is the size of the largest matrices that are
// gathered at a time. The forms are those of LoadOptions.
uint64_t WeightGatherBytes(const cluster::ModelSpec& spec,
                           const cluster::MeshShape& mesh,
                           kernels::WeightForm form,
                           kernels::WeightForm expert_form);

// The strategy in which weights travel. A layer gathers the attention's
// weights, then one dense network or one expert after the other. Partial
// products are added in rank order, without rounding between ranks. Every
// rank's latent cache is filled for all rows of the step.
class WeightGather final : public StepStrategy {
 public:
  // Errors besides those of StepStrategy::Forward: RESOURCE_EXHAUSTED: the
  // system refuses WeightGatherBytes of memory. The load has checked that they
  // are available.
  absl::Status Forward(LayerContext& context,
                       const StepPass& pass) const override;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_STRATEGIES_WEIGHT_GATHER_H_
