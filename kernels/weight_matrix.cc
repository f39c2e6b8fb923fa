// SPDX-License-Identifier: Apache-2.0
#include "kernels/weight_matrix.h"

#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/check.h"
#include "kernels/elementwise.h"

namespace ringfleet::kernels {
namespace {

size_t MatrixBytes(Dtype dtype, size_t rows, size_t columns) {
  RF_CHECK(dtype == Dtype::kF32 || dtype == Dtype::kBf16);
  const size_t limit = std::numeric_limits<size_t>::max() / DtypeBytes(dtype);
  RF_CHECK(columns == 0 || rows <= limit / columns);
  return rows * columns * DtypeBytes(dtype);
}

}  // namespace

WeightMatrix::WeightMatrix(Dtype dtype, size_t rows, size_t columns)
    : dtype_(dtype),
      rows_(rows),
      columns_(columns),
      buffer_(MatrixBytes(dtype, rows, columns)) {}

void WeightMatrix::Set(size_t row, size_t column, const float* values,
                       size_t count) {
  RF_CHECK(row < rows_ && column <= columns_ && count <= columns_ - column);
  if (count == 0) return;
  char* destination =
      buffer_.data() + (row * columns_ + column) * DtypeBytes(dtype_);
  if (dtype_ == Dtype::kF32) {
    std::memcpy(destination, values, count * sizeof(float));
  } else {
    FloatToBf16(values, count, reinterpret_cast<uint16_t*>(destination));
  }
}

void WeightMatrix::GetRow(size_t row, float* values) const {
  RF_CHECK(row < rows_);
  if (columns_ == 0) return;
  if (dtype_ == Dtype::kF32) {
    std::memcpy(values, Row(row), columns_ * sizeof(float));
  } else {
    Bf16ToFloat(static_cast<const uint16_t*>(Row(row)), columns_, values);
  }
}

}  // namespace ringfleet::kernels
