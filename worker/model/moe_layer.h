// SPDX-License-Identifier: Apache-2.0
// The feed-forward part of a layer: dense, or a mixture of experts
// (DeepSeek-V3, arXiv:2412.19437, section 2.1.2). The routes of a row depend on
// no other row, so any rank can choose them. The products need the weights of a
// rank.
#ifndef RINGFLEET_WORKER_MODEL_MOE_LAYER_H_
#define RINGFLEET_WORKER_MODEL_MOE_LAYER_H_

#include <cstddef>
#include <limits>

#include "worker/model/layer_context.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// Returns the index of every row that is in `rows` and below `end`. The list
// lies in the workspace and is valid until the next call.
absl::Span<const uint32_t> ListRows(
    Workspace& workspace, absl::Span<const kernels::RowRange> rows,
    size_t end = std::numeric_limits<size_t>::max());

// Chooses the experts of each row of x [rows, D] f32. Writes the experts to
// workspace.route_ids and their router weights to workspace.route_weights, both
// [rows, num_experts_per_tok].
void RouteRows(LayerContext& context, const MoeWeights& weights, const float* x,
               size_t rows);

// Checks the routes of rows [0, rows) in the workspace, which other ranks have
// sent.
// Errors: DATA_LOSS: an expert does not exist. The message names row and
// expert.
absl::Status CheckRoutes(const LayerContext& context, size_t rows);

// Adds the routes of rows [0, rows) in the workspace to context.routing_hash
// and to context.expert_counts.
void NoteRoutes(LayerContext& context, int layer, size_t rows);

// Sorts the routes of `rows` by expert. `rows` are ascending.
//   experts [all rows, num_experts_per_tok]: expert of each route, below
//     num_experts. -1: the route is left out.
// Writes the result to the workspace. assigned_rows holds the row of each
// route, and assigned_weights the router weight of each route. Indices
// [first_assigned[e], first_assigned[e + 1]) are the routes of expert e, by
// ascending row.
void AssignRows(LayerContext& context, const int32_t* experts,
                size_t num_experts, absl::Span<const kernels::RowRange> rows);

// Prepares the feed-forward part of a layer: notes routes and bytes, and
// decides which routes this rank's replicas serve. Requires the routes of all
// data groups' rows in the workspace. Call NoteFeedForward once for each layer,
// before the first piece of rows goes to FeedForward or FeedForwardHidden.
void NoteFeedForward(LayerContext& context, const LayerWeights& weights,
                     int layer);

// Products gate x and up x [rows, this rank's columns] of a dense layer or of
// the shared expert. A pointer is set if its product was computed before
// FeedForward. Null: FeedForward computes the product.
struct EarlyProducts {
  const float* gate = nullptr;
  const float* up = nullptr;
};

// Computes this rank's summand of the feed-forward part for the rows of `out`,
// which are ascending. A dense layer computes down(silu(gate x) * (up x)) over
// this rank's columns. A layer of experts computes the shared expert over this
// rank's columns, and adds this rank's routed experts times their router
// weights. Experts without rows are skipped. A row's summands are added in
// ascending order of expert, so a row's result does not depend on the other
// rows. Experts with several replicas are an exception: all rows together
// decide which rank computes which route, unless context.reproducible.
//   x [rows, D] in the form that the products read; rows of this data group
//     first. The routes of all rows of x are in the workspace.
//   out: output, this rank's summand
void FeedForward(LayerContext& context, const LayerWeights& weights,
                 const kernels::Activations& x, const EarlyProducts& early,
                 const kernels::SwigluOutput& out);

// Computes the first part of FeedForward, silu(gate x) * (up x) of `rows`, into
// the workspace.
void FeedForwardHidden(LayerContext& context, const LayerWeights& weights,
                       const kernels::Activations& x,
                       const EarlyProducts& early,
                       absl::Span<const kernels::RowRange> rows);

// Computes the second part of FeedForward, the down projections and their sums,
// for the rows of `out`. May be called for one piece of the rows after the
// other, so that finished rows are sent while the next piece is computed.
void FeedForwardSums(LayerContext& context, const LayerWeights& weights,
                     const kernels::SwigluOutput& out);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_MOE_LAYER_H_
