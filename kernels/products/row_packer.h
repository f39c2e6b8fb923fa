// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_PRODUCTS_ROW_PACKER_H_
#define RINGFLEET_KERNELS_PRODUCTS_ROW_PACKER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/products/quantize_f8.h"
#include "kernels/products/weight_matrix.h"

namespace ringfleet::kernels {

// Rows on their way into a WeightMatrix, with the bits that SetRow gives. A
// panel has 16 rows in each cache line: rows of kF32, kBf16 and kInt8 are
// rounded one by one, and stored 16 together. Holds 16 rounded rows. One thread
// may use it; another one may fill another 16 rows at the same time.
class RowPacker {
 public:
  static constexpr size_t kRows = 16;

  // Rows of another matrix come next. After Flush.
  void Begin(WeightMatrix* matrix);
  // `row` follows the one before, or was flushed in between.
  void Set(size_t row, const float* values);
  // The same of a row of fp8, into kInt8. False, with nothing set, when a value
  // is not finite.
  bool Set(size_t row, const F8Row& values);
  // Stores what is not stored yet.
  void Flush();

 private:
  // Where `row` goes, rounded to Element, and behind it as many zeros as a line
  // has.
  template <typename Element>
  Element* RoundedRow(size_t row);
  void Took(size_t row);

  WeightMatrix* matrix_ = nullptr;
  size_t first_ = 0;  // Row of the first that is held.
  size_t held_ = 0;
  size_t stride_ = 0;  // Bytes between two rows; 0: rows are set at once.
  std::vector<char> rounded_;
  float scales_[kRows];
};

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_ROW_PACKER_H_
