// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_KERNELS_PRODUCTS_PANEL_PRODUCT_H_
#define RINGFLEET_TESTS_KERNELS_PRODUCTS_PANEL_PRODUCT_H_

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "kernels/products/panel.h"

namespace ringfleet::kernels {

// Panel `index` of integer weights times the rows, by one kind of kernels, on a
// tile of ones.
inline PanelTile PanelProduct(const IntegerPanelKernels& kernels,
                              const WeightMatrix& w, size_t index,
                              const PanelBatch& batch) {
  PanelTile tile;
  std::fill(std::begin(tile.values), std::end(tile.values), 1.0f);
  const IntegerPanelKernel kernel =
      w.form() == WeightForm::kInt8 ? kernels.int8 : kernels.int4;
  kernel(w.Panel(index), batch,
         index + 1 < w.num_panels() ? w.Panel(index + 1) : nullptr,
         tile.values);
  return tile;
}

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_TESTS_KERNELS_PRODUCTS_PANEL_PRODUCT_H_
