// SPDX-License-Identifier: Apache-2.0
#include "worker/fused/tuned_tiles.h"

namespace ringfleet::worker {

FusedTiles TunedTiles::Of(const Product& product,
                          const FusedWeights& weights) const {
  FusedTiles tiles = weights.DefaultTiles();
  if (table_.rows().empty()) return tiles;
  const kernels::WeightForm form =
      weights.packed ? weights.packed->form() : kernels::WeightForm::kF32;
  tiles.Take(
      table_.Nearest({.cpu = cpu_,
                      .operation = product.operation,
                      .rows = product.rows,
                      .inputs = product.inputs,
                      .outputs = product.outputs,
                      .dtype = std::string(kernels::WeightFormName(form)),
                      .world = product.world}));
  return tiles;
}

}  // namespace ringfleet::worker
