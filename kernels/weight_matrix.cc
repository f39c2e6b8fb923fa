// SPDX-License-Identifier: Apache-2.0
#include "kernels/weight_matrix.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/check.h"
#include "kernels/elementwise.h"

namespace ringfleet::kernels {
namespace {

// The largest number, which no system has, instead of an overflow.
size_t MatrixBytes(Dtype dtype, size_t rows, size_t columns) {
  RF_CHECK(dtype == Dtype::kF32 || dtype == Dtype::kBf16);
  size_t bytes;
  if (__builtin_mul_overflow(rows, columns, &bytes) ||
      __builtin_mul_overflow(bytes, DtypeBytes(dtype), &bytes)) {
    return std::numeric_limits<size_t>::max();
  }
  return bytes;
}

}  // namespace

absl::StatusOr<WeightMatrix> WeightMatrix::Create(Dtype dtype, size_t rows,
                                                  size_t columns) {
  absl::StatusOr<AlignedBuffer> buffer =
      AlignedBuffer::Allocate(MatrixBytes(dtype, rows, columns));
  if (!buffer.ok()) return buffer.status();
  return WeightMatrix(dtype, rows, columns, *std::move(buffer));
}

WeightMatrix::WeightMatrix(Dtype dtype, size_t rows, size_t columns)
    : WeightMatrix(dtype, rows, columns,
                   AlignedBuffer(MatrixBytes(dtype, rows, columns))) {}

WeightMatrix::WeightMatrix(Dtype dtype, size_t rows, size_t columns,
                           AlignedBuffer buffer)
    : dtype_(dtype),
      rows_(rows),
      columns_(columns),
      buffer_(std::move(buffer)) {}

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
