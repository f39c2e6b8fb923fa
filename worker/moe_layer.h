// SPDX-License-Identifier: Apache-2.0
// The feed-forward part of a layer: dense, or a mixture of experts
// (DeepSeek-V3, arXiv:2412.19437, section 2.1.2), in two halves: which experts
// a token goes to, which depends on the token alone, and what this rank's
// experts make of it.
#ifndef RINGFLEET_WORKER_MOE_LAYER_H_
#define RINGFLEET_WORKER_MOE_LAYER_H_

#include <cstddef>

#include "worker/layer_context.h"
#include "worker/weights.h"

namespace ringfleet::worker {

// down(silu(gate x) * (up x)) over this rank's columns.
//   x [rows, D] in the form that gate and up read
//   out [rows, D] f32, dense
void DenseMlp(LayerContext& context, const MlpWeights& weights,
              const kernels::Activations& x, float* out);

// Routes `rows` tokens, x [rows, D] f32, dense: ids and weights
// [rows, num_experts_per_tok] go to the workspace.
void RouteRows(LayerContext& context, const MoeWeights& weights, const float* x,
               size_t rows);

// Takes the workspace's routes of all rows of a step into account: in the hash
// that ranks compare and in the counts.
void NoteRoutes(LayerContext& context, int layer, size_t rows);

// Sorts the workspace's routes of `rows` tokens by expert: those of expert
// experts.begin + e are [first_assigned[e], first_assigned[e + 1]) of
// assigned_rows, ascending, and of assigned_weights.
void AssignRows(LayerContext& context, cluster::Range experts, size_t rows);

// Routed experts of this rank, weighted, plus its part of the shared expert,
// in one summand. Dropless: experts without tokens are not visited. A token's
// summands are added in ascending order of expert, so its result does not
// depend on what else is in the batch.
//   x [rows, D] in the form that experts read; the workspace has their routes
//   partial [rows, D] f32: to be summed over ranks
void ExpertProducts(LayerContext& context, const MoeWeights& weights,
                    const kernels::Activations& x, float* partial);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MOE_LAYER_H_
