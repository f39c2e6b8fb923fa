// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1) of a
// rank's heads over one step's rows, in two parts. Latents depend on a row
// alone, so any rank can make them. Attention needs the cache and the weights
// of a rank's heads.
#ifndef RINGFLEET_WORKER_MODEL_MLA_LAYER_H_
#define RINGFLEET_WORKER_MODEL_MLA_LAYER_H_

#include <cstddef>

#include "worker/model/layer_context.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// Returns the form in which the products that make latents read their input.
inline kernels::Activations::Form LatentsForm(const AttentionWeights& weights) {
  return kernels::ActivationFormFor(weights.kv_a.form());
}

// Makes the latents of rows [first_row, first_row + rows) of the batch.
//   workspace.x [rows, D] in LatentsForm: input, after the input norm
//   workspace.kv [rows, r + dr] f32: output, normed and rotated, as the cache
//     stores it
// Returns the input of the query product, [rows, rq] after its norm, in the
// workspace. A model without q_lora_rank has workspace.x there.
const kernels::Activations& MakeLatents(LayerContext& context,
                                        const AttentionWeights& weights,
                                        const Batch& batch, size_t first_row,
                                        size_t rows);

// Attends with the heads of `weights`. Requires that the cache of `layer` holds
// all rows of the batch.
//   workspace.q [rows of the batch, heads, dn + dr] f32: products of q_b and
//     of the queries' latents; rotated in place
// Returns [rows of the batch, heads * dv] f32, in the workspace.
const float* AttendHeads(LayerContext& context, const AttentionWeights& weights,
                         const Batch& batch, int layer);

// Computes the query product, AttendHeads and the output product.
//   query_x [rows of the batch, rq] as MakeLatents returns it
//   partial [rows of the batch, D] f32: output, this rank's summand
void Attend(LayerContext& context, const AttentionWeights& weights,
            const Batch& batch, int layer, const kernels::Activations& query_x,
            float* partial);

// Makes the latents of all rows of the batch, writes them to the cache and
// attends.
//   workspace.x [rows of the batch, D] in LatentsForm: input, after the norm
//   partial [rows of the batch, D] f32: output, this rank's summand
void MlaLayer(LayerContext& context, const AttentionWeights& weights,
              const Batch& batch, int layer, float* partial);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_MLA_LAYER_H_
