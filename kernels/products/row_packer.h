// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_PRODUCTS_ROW_PACKER_H_
#define RINGFLEET_KERNELS_PRODUCTS_ROW_PACKER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/products/code_row.h"
#include "kernels/products/weight_matrix.h"

namespace ringfleet::kernels {

// Stores rows in a WeightMatrix, 16 at a time, as a cache line of a panel has
// 16 rows. Float32 gets the bits that SetRow gives. Rows of kF32, kBf16 and
// kInt8 are rounded one by one and held until 16 are there. One thread may use
// a RowPacker; another may fill another 16 rows of the matrix at the same time.
class RowPacker {
 public:
  static constexpr size_t kRows = 16;

  // Starts with another matrix. Requires a Flush before.
  void Begin(WeightMatrix* matrix);
  // Requires that `row` follows the row before, or a Flush in between.
  void Set(size_t row, const float* values);
  // Sets a row from codes without float32 in between. kInt8 takes fp8, rounded
  // as Set would, and int8 with one scale for the row, unchanged. kInt4 takes
  // int4 with a bfloat16 scale for each kInt4Group, unchanged. Returns false,
  // with nothing set, for other codes, and when a value is not finite.
  bool Set(size_t row, const CodeRow& values);
  // Stores the rows that are held.
  void Flush();

 private:
  // Returns memory for `row`, rounded to Element, with a line of zeros behind
  // it.
  template <typename Element>
  Element* RoundedRow(size_t row);
  void Took(size_t row);

  WeightMatrix* matrix_ = nullptr;
  size_t first_ = 0;  // First row that is held.
  size_t held_ = 0;
  size_t stride_ = 0;  // Bytes between two rows; 0: rows are set at once.
  std::vector<char> rounded_;
  float scales_[kRows];
};

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_ROW_PACKER_H_
