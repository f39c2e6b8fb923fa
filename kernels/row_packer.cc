// SPDX-License-Identifier: Apache-2.0
#include "kernels/row_packer.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/quantize.h"

namespace ringfleet::kernels {

void RowPacker::Begin(WeightMatrix* matrix) {
  RF_CHECK(held_ == 0);
  matrix_ = matrix;
  if (matrix->form() != WeightForm::kInt8) return;
  // Whole steps, and a cache line more: rows that lie a power of two apart
  // would push each other out of the level-1 cache.
  stride_ =
      (matrix->columns() + kStepColumns - 1) / kStepColumns * kStepColumns + 64;
  codes_.resize(std::max(codes_.size(), kRows * stride_));
}

void RowPacker::Set(size_t row, const float* values) {
  if (matrix_->form() != WeightForm::kInt8 || matrix_->columns() == 0) {
    return matrix_->SetRow(row, values);
  }
  scales_[held_] = QuantizeInt8(values, matrix_->columns(), CodesOf(row));
  Took(row);
}

bool RowPacker::Set(size_t row, const F8Row& values) {
  RF_CHECK(matrix_->form() == WeightForm::kInt8 &&
           values.count == matrix_->columns());
  if (!QuantizeInt8(values, CodesOf(row), &scales_[held_])) return false;
  Took(row);
  return true;
}

int8_t* RowPacker::CodesOf(size_t row) {
  if (held_ == 0) first_ = row;
  RF_CHECK(row == first_ + held_);
  int8_t* codes = codes_.data() + held_ * stride_;
  std::fill(codes + matrix_->columns(), codes + stride_, int8_t{0});
  return codes;
}

void RowPacker::Took(size_t row) {
  ++held_;
  if ((row + 1) % kRows == 0) Flush();
}

void RowPacker::Flush() {
  if (held_ == 0) return;
  matrix_->SetInt8Rows(first_, held_, codes_.data(), stride_, scales_);
  held_ = 0;
}

}  // namespace ringfleet::kernels
