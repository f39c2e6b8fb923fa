// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/row_packer.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/check.h"
#include "kernels/dtype.h"
#include "kernels/elementwise.h"
#include "kernels/products/quantize.h"
#include "kernels/products/quantize_f8.h"

namespace ringfleet::kernels {
namespace {

constexpr float kLargestFloat = std::numeric_limits<float>::max();

// Bytes of a rounded element in a row that waits to be stored; 0: rows of this
// form are stored at once.
size_t RoundedBytes(WeightForm form) {
  switch (form) {
    case WeightForm::kF32:
      return sizeof(float);
    case WeightForm::kBf16:
      return sizeof(uint16_t);
    case WeightForm::kInt8:
      return sizeof(int8_t);
    case WeightForm::kInt4:
    case WeightForm::kF32Rows:
    case WeightForm::kBf16Rows:
    case WeightForm::kReference:
      break;
  }
  return 0;
}

// Returns true if the row has one scale, and every value is finite.
bool IsInt8Row(const CodeRow& row) {
  return row.form == CodeForm::kInt8 && row.offset + row.count <= row.block &&
         row.count > 0 && *row.scales * 128 <= kLargestFloat;
}

// Returns true if the row has kInt4's groups from its first code on, and every
// value is finite.
bool IsInt4Row(const CodeRow& row) {
  return row.form == CodeForm::kInt4 && row.block == kInt4Group &&
         row.offset == 0 && row.skipped == 0 &&
         std::all_of(
             row.scales, row.scales + (row.count + kInt4Group - 1) / kInt4Group,
             [](float scale) {
               return scale * 8 <= kLargestFloat && RoundToBf16(scale) == scale;
             });
}

}  // namespace

void RowPacker::Begin(WeightMatrix* matrix) {
  RF_CHECK(held_ == 0);
  matrix_ = matrix;
  const size_t bytes = matrix->columns() * RoundedBytes(matrix->form());
  // Whole steps, and a cache line more: rows that lie a power of two apart
  // would push each other out of the level-1 cache.
  stride_ =
      bytes == 0
          ? 0
          : (bytes + kStepLaneBytes - 1) / kStepLaneBytes * kStepLaneBytes + 64;
  rounded_.resize(std::max(rounded_.size(), kRows * stride_));
}

void RowPacker::Set(size_t row, const float* values) {
  if (stride_ == 0) return matrix_->SetRow(row, values);
  const size_t columns = matrix_->columns();
  switch (matrix_->form()) {
    case WeightForm::kF32:
      std::copy_n(values, columns, RoundedRow<float>(row));
      break;
    case WeightForm::kBf16:
      FloatToBf16(values, columns, RoundedRow<uint16_t>(row));
      break;
    default:
      scales_[held_] = QuantizeInt8(values, columns, RoundedRow<int8_t>(row));
  }
  Took(row);
}

bool RowPacker::Set(size_t row, const CodeRow& values) {
  RF_CHECK(values.count == matrix_->columns());
  if (matrix_->form() == WeightForm::kInt4) {
    if (!IsInt4Row(values)) return false;
    matrix_->SetInt4Row(row, values.codes, values.scales);
    return true;
  }
  if (matrix_->form() != WeightForm::kInt8) return false;
  if (values.form == CodeForm::kF8E4M3) {
    if (!QuantizeInt8(values, RoundedRow<int8_t>(row), &scales_[held_])) {
      return false;
    }
  } else {
    if (!IsInt8Row(values)) return false;
    std::memcpy(RoundedRow<int8_t>(row), values.codes, values.count);
    scales_[held_] = *values.scales;
  }
  Took(row);
  return true;
}

template <typename Element>
Element* RowPacker::RoundedRow(size_t row) {
  if (held_ == 0) first_ = row;
  RF_CHECK(row == first_ + held_);
  char* const rounded = rounded_.data() + held_ * stride_;
  std::fill(rounded + matrix_->columns() * sizeof(Element), rounded + stride_,
            char{0});
  return reinterpret_cast<Element*>(rounded);
}

void RowPacker::Took(size_t row) {
  ++held_;
  if ((row + 1) % kRows == 0) Flush();
}

void RowPacker::Flush() {
  if (held_ == 0) return;
  matrix_->SetRoundedRows(first_, held_, rounded_.data(), stride_, scales_);
  held_ = 0;
}

}  // namespace ringfleet::kernels
