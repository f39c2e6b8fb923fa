// SPDX-License-Identifier: Apache-2.0
// The feed-forward part of a layer: dense, or a mixture of experts
// (DeepSeek-V3, arXiv:2412.19437, section 2.1.2), in two halves: which experts
// a token goes to, which depends on the token alone, and what this rank's
// experts make of it.
#ifndef RINGFLEET_WORKER_MODEL_MOE_LAYER_H_
#define RINGFLEET_WORKER_MODEL_MOE_LAYER_H_

#include <cstddef>
#include <limits>

#include "worker/model/layer_context.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// The tokens of `rows` before `end`, one by one, in the workspace until it is
// called again.
absl::Span<const uint32_t> ListRows(
    Workspace& workspace, absl::Span<const kernels::RowRange> rows,
    size_t end = std::numeric_limits<size_t>::max());

// Routes `rows` tokens, x [rows, D] f32, dense: ids and weights
// [rows, num_experts_per_tok] go to the workspace.
void RouteRows(LayerContext& context, const MoeWeights& weights, const float* x,
               size_t rows);

// DATA_LOSS when one of the workspace's routes of `rows` tokens, which others
// have sent, goes to no expert; names it.
absl::Status CheckRoutes(const LayerContext& context, size_t rows);

// Takes the workspace's routes of all rows of a step into account: in the hash
// that ranks compare and in the counts.
void NoteRoutes(LayerContext& context, int layer, size_t rows);

// Sorts the workspace's routes of the rows `rows`, ascending, by expert.
//   experts [all rows, num_experts_per_tok]: below num_experts, or -1: none
// Afterwards the rows of expert e, ascending, and their router weights are
// elements [first_assigned[e], first_assigned[e + 1]) of assigned_rows and
// assigned_weights.
void AssignRows(LayerContext& context, const int32_t* experts,
                size_t num_experts, absl::Span<const kernels::RowRange> rows);

// What the feed-forward products of a step's tokens will read and route, and
// which of them are this rank's, once however the tokens are cut: call before
// FeedForward, which does not. The workspace has the routes of all data groups'
// tokens.
void NoteFeedForward(LayerContext& context, const LayerWeights& weights,
                     int layer);

// What has been multiplied already of a dense layer, or of the shared expert:
// gate x and up x of all tokens, [tokens, this rank's columns of it]. Null:
// not.
struct EarlyProducts {
  const float* gate = nullptr;
  const float* up = nullptr;
};

// This rank's summand of the feed-forward part, for the rows of `out`,
// ascending: down(silu(gate x) * (up x)) over its columns of a dense layer, or
// its routed experts, weighted, plus its part of the shared expert. Dropless:
// experts without tokens are not visited. A token's summands are added in
// ascending order of expert, so its result does not depend on what else is in
// the batch, unless experts have copies: which ranks sum what then follows from
// all tokens.
//   x [rows, D] in the form that the products read; the workspace has the
//     routes of these tokens, of which the data group's own come first
//   out: to be summed over ranks
void FeedForward(LayerContext& context, const LayerWeights& weights,
                 const kernels::Activations& x, const EarlyProducts& early,
                 const kernels::SwigluOutput& out);

// The same in two parts, the second of which may be asked for in pieces, whose
// rows can travel meanwhile: silu(gate x) * (up x) of `rows`, which stay in the
// workspace,
void FeedForwardHidden(LayerContext& context, const LayerWeights& weights,
                       const kernels::Activations& x,
                       const EarlyProducts& early,
                       absl::Span<const kernels::RowRange> rows);
// and the sums of some of them.
void FeedForwardSums(LayerContext& context, const LayerWeights& weights,
                     const kernels::SwigluOutput& out);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_MOE_LAYER_H_
