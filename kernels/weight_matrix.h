// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_WEIGHT_MATRIX_H_
#define RINGFLEET_KERNELS_WEIGHT_MATRIX_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "kernels/aligned_buffer.h"
#include "kernels/dtype.h"

namespace ringfleet::kernels {

// Owns the weights of one product, [rows, columns] = [out, in], in the form
// the kernels read. How elements are laid out is known to this file and
// matmul.cc only. Immutable after loading; then thread-safe.
class WeightMatrix {
 public:
  // Zeros. `dtype` is kF32 or kBf16; either size may be 0.
  // RESOURCE_EXHAUSTED as AlignedBuffer::Allocate.
  static absl::StatusOr<WeightMatrix> Create(Dtype dtype, size_t rows,
                                             size_t columns);

  WeightMatrix() = default;
  // The same for sizes known to be small: aborts without memory.
  WeightMatrix(Dtype dtype, size_t rows, size_t columns);

  Dtype dtype() const { return dtype_; }
  size_t rows() const { return rows_; }
  size_t columns() const { return columns_; }
  size_t bytes() const { return buffer_.size(); }

  // Stores `count` values at [row, column...], rounded to dtype(). Distinct
  // rows may be set from different threads.
  void Set(size_t row, size_t column, const float* values, size_t count);
  // Widens row `row` to float32.
  void GetRow(size_t row, float* values) const;

  // Row-major elements of dtype(), for kernels.
  const void* Row(size_t row) const {
    return buffer_.data() + row * columns_ * DtypeBytes(dtype_);
  }

 private:
  WeightMatrix(Dtype dtype, size_t rows, size_t columns, AlignedBuffer buffer);

  Dtype dtype_ = Dtype::kF32;
  size_t rows_ = 0;
  size_t columns_ = 0;
  AlignedBuffer buffer_;
};

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_WEIGHT_MATRIX_H_
