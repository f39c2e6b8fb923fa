// SPDX-License-Identifier: Apache-2.0
// The feed-forward part of a layer: dense, or a mixture of experts
// (DeepSeek-V3, arXiv:2412.19437, section 2.1.2). Routing depends on a row
// alone, so any rank can do it. The products need the weights of a rank.
#ifndef RINGFLEET_WORKER_MODEL_MOE_LAYER_H_
#define RINGFLEET_WORKER_MODEL_MOE_LAYER_H_

#include <cstddef>
#include <limits>

#include "worker/model/layer_context.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// Lists the rows of `rows` below `end` one by one. The list lies in the
// workspace until the next call.
absl::Span<const uint32_t> ListRows(
    Workspace& workspace, absl::Span<const kernels::RowRange> rows,
    size_t end = std::numeric_limits<size_t>::max());

// Routes rows, x [rows, D] f32. Writes workspace.route_ids and route_weights,
// [rows, num_experts_per_tok].
void RouteRows(LayerContext& context, const MoeWeights& weights, const float* x,
               size_t rows);

// Checks the workspace's routes of `rows` rows, which other ranks have sent.
// Errors: DATA_LOSS names a row and an expert that does not exist.
absl::Status CheckRoutes(const LayerContext& context, size_t rows);

// Adds the workspace's routes of `rows` rows to the hash that ranks compare and
// to the expert counts.
void NoteRoutes(LayerContext& context, int layer, size_t rows);

// Sorts the workspace's routes of the rows `rows`, ascending, by expert.
//   experts [all rows, num_experts_per_tok]: below num_experts, or -1: none
// Afterwards the rows of expert e, ascending, and their router weights are
// elements [first_assigned[e], first_assigned[e + 1]) of assigned_rows and
// assigned_weights.
void AssignRows(LayerContext& context, const int32_t* experts,
                size_t num_experts, absl::Span<const kernels::RowRange> rows);

// Prepares the feed-forward part of a layer: notes routes and bytes, and
// decides which routes this rank's replicas serve. Call it once a layer, before
// FeedForward or FeedForwardHidden, however many pieces the rows have. Requires
// the routes of all data groups' rows in the workspace.
void NoteFeedForward(LayerContext& context, const LayerWeights& weights,
                     int layer);

// Products of a dense layer, or of the shared expert, that have been computed
// early: gate x and up x of all rows, [rows, this rank's columns]. Null: they
// have not been computed.
struct EarlyProducts {
  const float* gate = nullptr;
  const float* up = nullptr;
};

// Computes this rank's summand of the feed-forward part for the rows of `out`,
// ascending: down(silu(gate x) * (up x)) over its columns of a dense layer, or
// its routed experts, weighted, plus its columns of the shared expert. Experts
// without rows are not visited. The summands of a row are added in ascending
// order of expert, so its result does not depend on the other rows. Experts
// with several replicas are the exception: all rows together decide which rank
// sums which route.
//   x [rows, D] in the form that the products read; own rows of the data group
//     first; the workspace has the routes of these rows
//   out: this rank's summand
void FeedForward(LayerContext& context, const LayerWeights& weights,
                 const kernels::Activations& x, const EarlyProducts& early,
                 const kernels::SwigluOutput& out);

// Computes silu(gate x) * (up x) for `rows` into the workspace. First part of
// FeedForward.
void FeedForwardHidden(LayerContext& context, const LayerWeights& weights,
                       const kernels::Activations& x,
                       const EarlyProducts& early,
                       absl::Span<const kernels::RowRange> rows);

// Computes the down projections and their sums for the rows of `out`. Second
// part of FeedForward. May be called piece by piece, so that finished rows are
// sent while the next are computed.
void FeedForwardSums(LayerContext& context, const LayerWeights& weights,
                     const kernels::SwigluOutput& out);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_MOE_LAYER_H_
