// SPDX-License-Identifier: Apache-2.0
#include "worker/fused/tuned_tiles.h"

namespace ringfleet::worker {

FusedTiles TunedTiles::Of(const Product& product,
                          const kernels::WeightMatrix& w) const {
  FusedTiles tiles = FusedTiles::Default(w);
  if (table_.rows().empty()) return tiles;
  tiles.Take(
      table_.Nearest({.cpu = cpu_,
                      .operation = product.operation,
                      .rows = product.rows,
                      .inputs = product.inputs,
                      .outputs = product.outputs,
                      .dtype = std::string(kernels::WeightFormName(w.form())),
                      .world = product.world}));
  return tiles;
}

}  // namespace ringfleet::worker
