// SPDX-License-Identifier: Apache-2.0
#include "worker/decoder_layer.h"

#include "cluster/status_macros.h"
#include "kernels/elementwise.h"
#include "kernels/rms_norm.h"
#include "worker/mla_layer.h"
#include "worker/moe_layer.h"

namespace ringfleet::worker {
namespace {

absl::Status AddReduced(LayerContext& context, const char* part, int layer,
                        float* partial, size_t size, float* x) {
  RF_RETURN_IF_ERROR(Annotate(
      context.communicator.AllReduce(
          absl::MakeSpan(partial, size),
          {context.wire, static_cast<size_t>(context.spec.hidden_size)},
          context.routing_hash),
      absl::StrCat("layer ", layer, " ", part)));
  kernels::AddTo(partial, size, x);
  return absl::OkStatus();
}

}  // namespace

absl::Status DecoderLayer(LayerContext& context, const LayerWeights& weights,
                          const Batch& batch, int layer, float* x) {
  const size_t rows = batch.rows();
  const size_t hidden = context.spec.hidden_size;
  const float eps = static_cast<float>(context.spec.rms_norm_eps);
  float* normed = Grow(context.workspace.normed, rows * hidden);
  float* partial = Grow(context.workspace.partial, rows * hidden);

  kernels::RmsNorm(x, rows, hidden, hidden, weights.input_norm.data(), eps,
                   normed, hidden);
  MlaLayer(context, weights.attention, batch, layer, normed, partial);
  RF_RETURN_IF_ERROR(
      AddReduced(context, "attention", layer, partial, rows * hidden, x));

  kernels::RmsNorm(x, rows, hidden, hidden, weights.post_attention_norm.data(),
                   eps, normed, hidden);
  if (weights.is_moe) {
    MoeLayer(context, weights.moe, layer, normed, rows, partial);
  } else {
    SwigluMlp(context, weights.dense, normed, rows, partial);
  }
  return AddReduced(context, "feed-forward", layer, partial, rows * hidden, x);
}

}  // namespace ringfleet::worker
