// SPDX-License-Identifier: Apache-2.0
#include "worker/strategies/replicated.h"

#include "cluster/process/status_macros.h"
#include "kernels/products/rms_norm.h"
#include "worker/model/decoder_layer.h"

namespace ringfleet::worker {

absl::Status Replicated::Forward(LayerContext& context,
                                 const StepPass& pass) const {
  const cluster::ModelSpec& spec = context.spec;
  const size_t size = spec.hidden_size;
  const size_t rows = pass.batch.rows();
  float* x = Grow(context.workspace.residual, rows * size);
  EmbedRows(pass.weights, pass.batch.ids, size, x);
  if (pass.observer.has_value()) (*pass.observer)(0, x);
  for (int layer = 0; layer < spec.num_hidden_layers; ++layer) {
    const auto scope = cluster::TraceScope::Layer(context.trace, layer);
    RF_RETURN_IF_ERROR(DecoderLayer(context, pass.weights.layers[layer],
                                    pass.batch, layer, x));
    if (pass.observer.has_value() && layer + 1 < spec.num_hidden_layers) {
      (*pass.observer)(layer + 1, x);
    }
  }
  if (rows == 0) return absl::OkStatus();
  kernels::RmsNorm(x, rows, size, size, pass.weights.final_norm.data(),
                   static_cast<float>(spec.rms_norm_eps), pass.hidden, size,
                   context.pool);
  return absl::OkStatus();
}

}  // namespace ringfleet::worker
