// SPDX-License-Identifier: Apache-2.0
// Layers whose weights travel in place of activations, as in fully sharded data
// parallelism (ZeRO stage 3, arXiv:1910.02054, section 5.3; PyTorch FSDP,
// arXiv:2304.11277). Every rank computes whole layers for its own rows. Each
// rank gathers the other ranks' weights just before use and frees the gathered
// weights afterwards. The traffic does not grow with the rows, so it pays from
// about as many rows as a layer is wide.
#ifndef RINGFLEET_WORKER_STRATEGIES_WEIGHT_GATHER_H_
#define RINGFLEET_WORKER_STRATEGIES_WEIGHT_GATHER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "cluster/model/model_spec.h"
#include "cluster/model/shard_plan.h"
#include "kernels/products/weight_matrix.h"
#include "worker/model/step_strategy.h"

namespace ringfleet::worker {

// Returns the memory that a rank needs beside weights and cache: the largest
// part that is gathered at a time. The forms are those of LoadOptions.
uint64_t WeightGatherBytes(const cluster::ModelSpec& spec,
                           const cluster::MeshShape& mesh,
                           kernels::WeightForm form,
                           kernels::WeightForm expert_form);

// A layer holds the attention's weights, one dense network or one expert of all
// ranks at a time. Partial products are added in rank order, and nothing is
// rounded between ranks. Every rank's latent cache is filled for all rows of
// the step.
class WeightGather final : public StepStrategy {
 public:
  // Also RESOURCE_EXHAUSTED: the system has no WeightGatherBytes of memory,
  // which the load has counted on.
  absl::Status Forward(LayerContext& context,
                       const StepPass& pass) const override;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_STRATEGIES_WEIGHT_GATHER_H_
