// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_MOE_LAYER_H_
#define RINGFLEET_WORKER_MOE_LAYER_H_

#include "worker/layer_context.h"
#include "worker/weights.h"

namespace ringfleet::worker {

// down(silu(gate x) * (up x)) over this rank's columns.
//   x, out [rows, D] f32, dense, not overlapping
void DenseMlp(LayerContext& context, const MlpWeights& weights, const float* x,
              size_t rows, float* out);

// Mixture of experts: routed experts of this rank, weighted, plus its part of
// the shared expert, in one summand (DeepSeek-V3, arXiv:2412.19437, section
// 2.1.2). Dropless: experts without tokens are not visited. A token's
// summands are added in ascending order of expert, so its result does not
// depend on what else is in the batch.
//   x, partial [rows, D] f32; partial is to be summed over ranks
void MoeLayer(LayerContext& context, const MoeWeights& weights, int layer,
              const float* x, size_t rows, float* partial);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MOE_LAYER_H_
