// SPDX-License-Identifier: Apache-2.0
#include "worker/strategies/split_layers.h"

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "kernels/products/rms_norm.h"
#include "worker/model/row_gather.h"

namespace ringfleet::worker {

absl::Status RunSplitLayers(LayerContext& context, const StepPass& pass,
                            SplitLayer run_layer) {
  const cluster::ModelSpec& spec = context.spec;
  const size_t size = spec.hidden_size;
  Workspace& workspace = context.workspace;
  RowSplit& split = workspace.split;
  split.Assign(pass.batch.rows(), context.communicator.size(),
               context.communicator.rank());
  float* x = Grow(workspace.residual, split.size() * size);
  EmbedRows(
      pass.weights,
      absl::MakeConstSpan(pass.batch.ids).subspan(split.begin(), split.size()),
      size, x);
  const auto observe = [&](int index) -> absl::Status {
    if (!pass.observer.has_value()) return absl::OkStatus();
    RF_RETURN_IF_ERROR(
        GatherWantedRows(context, split, x, pass.wanted, pass.hidden));
    (*pass.observer)(index, pass.hidden);
    return absl::OkStatus();
  };
  RF_RETURN_IF_ERROR(observe(0));
  for (int layer = 0; layer < spec.num_hidden_layers; ++layer) {
    const auto scope = cluster::TraceScope::Layer(context.trace, layer);
    const absl::Status status =
        run_layer(pass.weights.layers[layer], split, layer, x);
    if (!status.ok()) return Annotate(status, absl::StrCat("layer ", layer));
    if (layer + 1 < spec.num_hidden_layers) {
      RF_RETURN_IF_ERROR(observe(layer + 1));
    }
  }
  float* normed = Grow(workspace.normed, split.size() * size);
  kernels::RmsNorm(x, split.size(), size, size, pass.weights.final_norm.data(),
                   static_cast<float>(spec.rms_norm_eps), normed, size,
                   context.pool);
  return GatherWantedRows(context, split, normed, pass.wanted, pass.hidden);
}

}  // namespace ringfleet::worker
