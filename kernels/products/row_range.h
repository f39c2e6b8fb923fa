// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_PRODUCTS_ROW_RANGE_H_
#define RINGFLEET_KERNELS_PRODUCTS_ROW_RANGE_H_

#include <cstddef>

namespace ringfleet::kernels {

// Rows [begin, end) of a matrix.
struct RowRange {
  size_t begin = 0;
  size_t end = 0;

  size_t size() const { return end - begin; }

  bool operator==(const RowRange&) const = default;
};

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_ROW_RANGE_H_
