// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention of a rank's heads over one step's tokens
// (DeepSeek-V2, arXiv:2405.04434, section 2.1), in two halves: latents, which
// depend on a token alone and which any rank can make, and what a rank's heads
// make of them.
#ifndef RINGFLEET_WORKER_MODEL_MLA_LAYER_H_
#define RINGFLEET_WORKER_MODEL_MLA_LAYER_H_

#include <cstddef>

#include "worker/model/layer_context.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// What the latents' products of a layer read.
inline kernels::Activations::Form LatentsForm(const AttentionWeights& weights) {
  return kernels::ActivationFormFor(weights.kv_a.form());
}

// Latents of rows [first_row, first_row + rows) of the batch:
//   workspace.x [rows, D] in LatentsForm, after the input norm
// Fills workspace.kv [rows, r + dr] f32, normed and rotated, as the cache
// stores it. Returns the input of the query product, [rows, rq] normed (or
// workspace.x where a model has no q_lora_rank), which lies in the workspace.
const kernels::Activations& MakeLatents(LayerContext& context,
                                        const AttentionWeights& weights,
                                        const Batch& batch, size_t first_row,
                                        size_t rows);

// Attends with the heads that `weights` has. The cache of `layer` holds all
// rows of the batch, and workspace.q [rows of the batch, heads, dn + dr] the
// products of their queries' latents and q_b, which are rotated in place.
// Returns [rows of the batch, heads * dv] f32, in the workspace.
const float* AttendHeads(LayerContext& context, const AttentionWeights& weights,
                         const Batch& batch, int layer);

// The query product, AttendHeads and the output product.
//   query_x [rows of the batch, rq] as MakeLatents returns it
//   partial [rows of the batch, D] f32: to be summed over ranks
void Attend(LayerContext& context, const AttentionWeights& weights,
            const Batch& batch, int layer, const kernels::Activations& query_x,
            float* partial);

// Both halves over all rows of the batch, with the latents written to the
// cache in between.
//   workspace.x [rows of the batch, D] in LatentsForm, after the input norm
//   partial [rows of the batch, D] f32
void MlaLayer(LayerContext& context, const AttentionWeights& weights,
              const Batch& batch, int layer, float* partial);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_MLA_LAYER_H_
