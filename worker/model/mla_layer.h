// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1) of a
// rank's heads over one step's rows, in two parts. The latents of a row depend
// on no other row, so any rank can compute them. Attention needs the cache and
// the weights of a rank's heads.
#ifndef RINGFLEET_WORKER_MODEL_MLA_LAYER_H_
#define RINGFLEET_WORKER_MODEL_MLA_LAYER_H_

#include <cstddef>

#include "worker/model/layer_context.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// Returns the form of input that the products q_a and kv_a read.
inline kernels::Activations::Form LatentsForm(const AttentionWeights& weights) {
  return kernels::ActivationFormFor(weights.kv_a.form());
}

// Computes query latents and cache rows of rows [first_row, first_row + rows)
// of the batch.
//   workspace.x [rows, D] in LatentsForm: input, after the layer's input norm
//   workspace.kv [rows, r + dr] f32: output, the rows of the cache: latents
//     after their norm, then rotated rope keys
// Returns the input of the query product, in the workspace: query latents
// [rows, rq] after their norm. Returns workspace.x for a model without
// q_lora_rank.
const kernels::Activations& MakeLatents(LayerContext& context,
                                        const AttentionWeights& weights,
                                        const Batch& batch, size_t first_row,
                                        size_t rows);

// Computes attention for the heads of `weights`. Requires that the cache of
// `layer` holds all rows of the batch.
//   workspace.q [rows of the batch, heads, dn + dr] f32: input, products of
//     query latents and q_b; the rope parts are rotated in place
// Returns [rows of the batch, heads * dv] f32, in the workspace.
const float* AttendHeads(LayerContext& context, const AttentionWeights& weights,
                         const Batch& batch, int layer);

// Computes the query product, attention (AttendHeads) and the output product.
//   query_x [rows of the batch, rq] as MakeLatents returns it
//   partial [rows of the batch, D] f32: output, this rank's summand
void Attend(LayerContext& context, const AttentionWeights& weights,
            const Batch& batch, int layer, const kernels::Activations& query_x,
            float* partial);

// Calls MakeLatents for all rows of the batch, writes the latents to the cache
// and calls Attend.
//   workspace.x [rows of the batch, D] in LatentsForm: input, after the layer's
//     input norm
//   partial [rows of the batch, D] f32: output, this rank's summand
void MlaLayer(LayerContext& context, const AttentionWeights& weights,
              const Batch& batch, int layer, float* partial);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_MLA_LAYER_H_
