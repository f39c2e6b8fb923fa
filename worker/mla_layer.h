// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_MLA_LAYER_H_
#define RINGFLEET_WORKER_MLA_LAYER_H_

#include "worker/layer_context.h"
#include "worker/weights.h"

namespace ringfleet::worker {

// Multi-head latent attention of this rank's heads over one step's tokens
// (DeepSeek-V2, arXiv:2405.04434, section 2.1): makes latents (replicated on
// every rank), writes them to the cache of `layer`, attends, and projects.
//   x       [rows, D] f32, dense, after the input norm
//   partial [rows, D] f32: to be summed over ranks
void MlaLayer(LayerContext& context, const AttentionWeights& weights,
              const Batch& batch, int layer, const float* x, float* partial);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MLA_LAYER_H_
