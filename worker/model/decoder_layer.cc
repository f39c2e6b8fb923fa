// SPDX-License-Identifier: Apache-2.0
#include "worker/model/decoder_layer.h"

#include "cluster/process/status_macros.h"
#include "kernels/elementwise.h"
#include "kernels/products/rms_norm.h"
#include "worker/model/expert_exchange.h"
#include "worker/model/mla_layer.h"
#include "worker/model/moe_layer.h"

namespace ringfleet::worker {
namespace {

// Adds up partial [rows, D] over ranks, in place.
absl::Status Reduce(LayerContext& context, const char* part, int layer,
                    float* partial, size_t size) {
  const absl::Status status = context.communicator.AllReduce(
      absl::MakeSpan(partial, size),
      {context.wire, static_cast<size_t>(context.spec.hidden_size)},
      context.routing_hash);
  if (status.ok()) return status;  // A step allocates nothing, no text either.
  return Annotate(status, absl::StrCat("layer ", layer, " ", part));
}

// Runs a layer in which only other data groups have rows, which may need this
// rank's experts.
absl::Status ServeOtherGroups(LayerContext& context,
                              const LayerWeights& weights, int layer) {
  if (!weights.is_moe) return absl::OkStatus();
  kernels::Activations& none = context.workspace.x;
  none.Reshape(FeedForwardForm(weights), 0, context.spec.hidden_size);
  return ExchangedFeedForward(context, weights, none, layer).status();
}

}  // namespace

absl::Status DecoderLayer(LayerContext& context, const LayerWeights& weights,
                          const Batch& batch, int layer, float* x) {
  const size_t rows = batch.rows();
  if (rows == 0) return ServeOtherGroups(context, weights, layer);
  const size_t hidden = context.spec.hidden_size;
  const float eps = static_cast<float>(context.spec.rms_norm_eps);
  float* normed = Grow(context.workspace.normed, rows * hidden);
  float* partial = Grow(context.workspace.partial, rows * hidden);

  kernels::Activations& x_normed = context.workspace.x;
  kernels::RmsNorm(x, rows, hidden, weights.input_norm.data(), eps, normed,
                   LatentsForm(weights.attention), &x_normed, context.pool);
  MlaLayer(context, weights.attention, batch, layer, partial);
  RF_RETURN_IF_ERROR(
      Reduce(context, "attention", layer, partial, rows * hidden));

  kernels::AddRmsNorm(partial, rows, hidden, weights.post_attention_norm.data(),
                      eps, x, normed, FeedForwardForm(weights), &x_normed,
                      context.pool);
  if (weights.is_moe) RouteRows(context, weights.moe, normed, rows);
  if (weights.is_moe && context.data_axis != nullptr) {
    RF_ASSIGN_OR_RETURN(
        partial, ExchangedFeedForward(context, weights, x_normed, layer));
  } else {
    const kernels::RowRange all_rows = {0, rows};
    NoteFeedForward(context, weights, layer);
    FeedForward(context, weights, x_normed, /*early=*/{},
                {.y = partial, .rows = {&all_rows, 1}});
  }
  RF_RETURN_IF_ERROR(
      Reduce(context, "feed-forward", layer, partial, rows * hidden));
  context.pool.ParallelFor(rows, /*grain=*/16, [&](size_t begin, size_t end) {
    kernels::AddTo(partial + begin * hidden, (end - begin) * hidden,
                   x + begin * hidden);
  });
  return absl::OkStatus();
}

}  // namespace ringfleet::worker
