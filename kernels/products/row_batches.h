// SPDX-License-Identifier: Apache-2.0
// Batches of rows, from a list of ranges, that go through a panel together.
#ifndef RINGFLEET_KERNELS_PRODUCTS_ROW_BATCHES_H_
#define RINGFLEET_KERNELS_PRODUCTS_ROW_BATCHES_H_

#include <cstddef>

#include "absl/types/span.h"
#include "kernels/products/activations.h"
#include "kernels/products/panel.h"
#include "kernels/products/row_range.h"

namespace ringfleet::kernels {

// Walks over the rows of `ranges` of x. Both must outlive it.
class RowBatches {
 public:
  RowBatches(const Activations& x, absl::Span<const RowRange> ranges)
      : x_(x), ranges_(ranges) {}

  // Fills an empty batch with the next rows and returns their number; 0 at the
  // end. rows[i] is the row of x that the batch has at i.
  size_t Next(PanelBatch& batch, size_t (&rows)[kMaxPanelBatch]) {
    size_t count = 0;
    for (; range_ < ranges_.size(); ++range_, done_ = 0) {
      const RowRange range = ranges_[range_];
      for (; done_ < range.size(); ++done_) {
        if (count == kMaxPanelBatch) return count;
        rows[count++] = range.begin + done_;
        batch.Add(x_, range.begin + done_);
      }
    }
    return count;
  }

 private:
  const Activations& x_;
  const absl::Span<const RowRange> ranges_;
  size_t range_ = 0;
  size_t done_ = 0;  // Rows of this range.
};

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_ROW_BATCHES_H_
