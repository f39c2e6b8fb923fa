// SPDX-License-Identifier: Apache-2.0
#include "worker/strategies/sequence_parallel.h"

#include "cluster/model/prefill_strategy.h"
#include "cluster/process/status_macros.h"
#include "cluster/wire/wire_format.h"
#include "kernels/elementwise.h"
#include "kernels/products/matmul.h"
#include "kernels/products/rms_norm.h"
#include "worker/model/expert_exchange.h"
#include "worker/model/mla_layer.h"
#include "worker/model/moe_layer.h"
#include "worker/model/row_gather.h"
#include "worker/strategies/sequence_gathers.h"
#include "worker/strategies/split_layers.h"

namespace ringfleet::worker {
namespace {

// Returns whether sums of the feed-forward part travel beside its down
// products. A piece reads the down weights of every expert that it has rows
// for, which pays where experts have enough rows.
bool FusesFeedForward(const LayerContext& context, const LayerWeights& weights,
                      const RowSplit& split) {
  if (!Fuses(context, split)) return false;
  if (!weights.is_moe) return true;
  return cluster::ExpertsHaveRows(
      context.spec,
      split.rows() / static_cast<size_t>(context.communicator.size()),
      context.fuse_rows);
}

// Rounds sums [split.size(), D] to the wire, as an all-reduce does when it
// sends them.
void RoundSums(LayerContext& context, const RowSplit& split, float* sums) {
  if (context.wire == cluster::Wire::kF32) return;
  const size_t hidden = context.spec.hidden_size;
  const cluster::WireFormat format(context.wire, hidden);
  context.pool.ParallelFor(
      split.size(), kRowGrain, [&](size_t begin, size_t end) {
        format.Round(0, (end - begin) * hidden, sums + begin * hidden);
      });
}

// Adds up partial [split.rows(), D] over ranks. Returns this rank's rows of the
// sum, [split.size(), D], rounded.
absl::StatusOr<const float*> ReduceScatterRows(LayerContext& context,
                                               const RowSplit& split,
                                               float* partial) {
  const size_t hidden = context.spec.hidden_size;
  Workspace& workspace = context.workspace;
  workspace.element_offsets.clear();
  for (const uint64_t offset : split.offsets) {
    workspace.element_offsets.push_back(offset * hidden);
  }
  float* reduced = Grow(workspace.reduced, split.size() * hidden);
  RF_RETURN_IF_ERROR(context.communicator.ReduceScatter(
      absl::MakeSpan(partial, split.rows() * hidden),
      absl::MakeSpan(reduced, split.size() * hidden), workspace.element_offsets,
      {context.wire, hidden}, context.routing_hash));
  RoundSums(context, split, reduced);
  return reduced;
}

// Multiplies attended by w and adds up over ranks. Returns this rank's rows of
// the sum, [split.size(), D].
//   attended [split.rows(), w.columns()] f32
absl::StatusOr<const float*> ProjectAndScatter(LayerContext& context,
                                               const kernels::WeightMatrix& w,
                                               const float* attended,
                                               const RowSplit& split) {
  Workspace& workspace = context.workspace;
  if (Fuses(context, split)) {
    float* out = Grow(workspace.reduced, split.size() * w.rows());
    RF_RETURN_IF_ERROR(context.communicator.MatmulReduceScatter(
        {.rows = split.rows(),
         .wire = context.wire,
         .check = context.routing_hash,
         .tiles = context.tiles.Of(
             {.operation = cluster::Operation::kMatmulReduceScatter,
              .rows = split.rows(),
              .inputs = context.spec.num_attention_heads *
                        static_cast<size_t>(context.spec.v_head_dim),
              .outputs = w.rows(),
              .world = context.communicator.size()},
             w),
         .x = attended,
         .x_stride = w.columns(),
         .w = &w,
         .out = out},
        context.pool));
    RoundSums(context, split, out);
    return out;
  }
  workspace.attended_x.Assign(kernels::ActivationFormFor(w.form()), attended,
                              split.rows(), w.columns(), w.columns(),
                              context.pool);
  float* partial = Grow(workspace.partial, split.rows() * w.rows());
  kernels::MatMul(w, workspace.attended_x, partial, context.pool);
  return ReduceScatterRows(context, split, partial);
}

// Computes the feed-forward part of all rows and adds up over ranks. Returns
// this rank's rows of the sum, [split.size(), D].
absl::StatusOr<const float*> FeedForwardAndScatter(LayerContext& context,
                                                   const LayerWeights& weights,
                                                   const GatheredNormed& normed,
                                                   const RowSplit& split,
                                                   int layer) {
  const size_t hidden = context.spec.hidden_size;
  if (weights.is_moe && context.data_axis != nullptr) {
    RF_ASSIGN_OR_RETURN(float* partial, ExchangedFeedForward(context, weights,
                                                             *normed.x, layer));
    return ReduceScatterRows(context, split, partial);
  }
  NoteFeedForward(context, weights, layer);
  const kernels::RowRange all = {0, split.rows()};
  if (FusesFeedForward(context, weights, split)) {
    FeedForwardHidden(context, weights, *normed.x, normed.early, {&all, 1});
    float* out = Grow(context.workspace.reduced, split.size() * hidden);
    // One piece a step, because each piece reads all last weights again.
    RF_RETURN_IF_ERROR(context.communicator.ReduceScatterWhile(
        {.rows = split.rows(),
         .columns = hidden,
         .wire = context.wire,
         .check = context.routing_hash,
         .piece_rows = split.rows(),
         .most_piece_rows = split.rows(),
         .out = out},
        [&](absl::Span<const kernels::RowRange> rows, float* y,
            size_t first_y) {
          FeedForwardSums(context, weights,
                          {.y = y, .first_y = first_y, .rows = rows});
        }));
    RoundSums(context, split, out);
    return out;
  }
  float* partial = Grow(context.workspace.partial, split.rows() * hidden);
  FeedForward(context, weights, *normed.x, normed.early,
              {.y = partial, .rows = {&all, 1}});
  return ReduceScatterRows(context, split, partial);
}

// One transformer layer, with an all-gather of latents and cache rows, a
// reduce-scatter after the attention's output product, an all-gather of normed
// activations and routes, and a reduce-scatter after the feed-forward part.
//   x [split.size(), D] f32, this rank's rows, in place
absl::Status RunLayer(LayerContext& context, const LayerWeights& weights,
                      const Batch& batch, const RowSplit& split, int layer,
                      float* x) {
  Workspace& workspace = context.workspace;
  const size_t own = split.size();
  const size_t hidden = context.spec.hidden_size;
  const float eps = static_cast<float>(context.spec.rms_norm_eps);
  float* normed = Grow(workspace.normed, own * hidden);

  kernels::RmsNorm(x, own, hidden, weights.input_norm.data(), eps, normed,
                   LatentsForm(weights.attention), &workspace.x, context.pool);
  const kernels::Activations& query_x =
      MakeLatents(context, weights.attention, batch, split.begin(), own);
  RF_RETURN_IF_ERROR(GatherQueries(context, weights.attention.q_b, batch, split,
                                   layer, query_x));
  const float* attended = AttendHeads(context, weights.attention, batch, layer);
  RF_ASSIGN_OR_RETURN(
      const float* projected,
      ProjectAndScatter(context, weights.attention.o, attended, split));

  kernels::AddRmsNorm(projected, own, hidden,
                      weights.post_attention_norm.data(), eps, x, normed,
                      FeedForwardForm(weights), &workspace.x, context.pool);
  if (weights.is_moe) RouteRows(context, weights.moe, normed, own);
  RF_ASSIGN_OR_RETURN(const GatheredNormed gathered,
                      GatherNormed(context, weights, split));
  RF_ASSIGN_OR_RETURN(
      const float* fed,
      FeedForwardAndScatter(context, weights, gathered, split, layer));
  context.pool.ParallelFor(own, kRowGrain, [&](size_t begin, size_t end) {
    kernels::AddTo(fed + begin * hidden, (end - begin) * hidden,
                   x + begin * hidden);
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status SequenceParallel::Forward(LayerContext& context,
                                       const StepPass& pass) const {
  return RunSplitLayers(context, pass,
                        [&](const LayerWeights& weights, const RowSplit& split,
                            int layer, float* x) {
                          return RunLayer(context, weights, pass.batch, split,
                                          layer, x);
                        });
}

}  // namespace ringfleet::worker
