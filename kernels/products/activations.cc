// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/activations.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/check.h"

namespace ringfleet::kernels {
namespace {

// Elements that a thread quantises in about the time it takes to wake it.
constexpr size_t kGrainElements = size_t{1} << 14;

template <typename T>
void GrowTo(size_t size, std::vector<T>* buffer) {
  if (buffer->size() < size) buffer->resize(size);
}

}  // namespace

void Activations::Reshape(Form form, size_t rows, size_t columns) {
  form_ = form;
  rows_ = rows;
  columns_ = columns;
  groups_ = (columns + kActivationGroup - 1) / kActivationGroup;
  if (form == Form::kF32) {
    GrowTo(rows * columns, &own_values_);
    values_ = own_values_.data();
    stride_ = columns;
    return;
  }
  // Whole groups: a row never shares a cache line with the next one's.
  code_stride_ = groups_ * kActivationGroup;
  GrowTo(rows * code_stride_, &codes_);
  GrowTo(rows * groups_, &scales_);
  GrowTo(rows * groups_ * kSumsPerGroup, &sums_);
  GrowTo(rows * groups_, &biases_);
}

void Activations::Assign(Form form, const float* x, size_t rows, size_t columns,
                         size_t x_stride, ThreadPool& pool) {
  if (form == Form::kF32) {
    form_ = form;
    rows_ = rows;
    columns_ = columns;
    groups_ = (columns + kActivationGroup - 1) / kActivationGroup;
    values_ = x;
    stride_ = x_stride;
    return;
  }
  Reshape(form, rows, columns);
  pool.ParallelFor(rows, 1 + kGrainElements / std::max<size_t>(columns, 1),
                   [&](size_t begin, size_t end) {
                     for (size_t row = begin; row < end; ++row) {
                       SetRow(row, x + row * x_stride);
                     }
                   });
}

void Activations::SetRow(size_t row, const float* values) {
  RF_CHECK(row < rows_);
  Set(row, 0, values, columns_);
}

void Activations::SetGroup(size_t row, size_t group, const float* values) {
  RF_CHECK(row < rows_ && group < groups_);
  Set(row, group, values,
      std::min(kActivationGroup, columns_ - group * kActivationGroup));
}

void Activations::Set(size_t row, size_t group, const float* values,
                      size_t count) {
  if (count == 0) return;
  const size_t first = group * kActivationGroup;
  if (form_ == Form::kF32) {
    std::memcpy(own_values_.data() + row * columns_ + first, values,
                count * sizeof(float));
    return;
  }
  const size_t at = row * groups_ + group;
  const size_t groups = (count + kActivationGroup - 1) / kActivationGroup;
  QuantizeGroups(values, count, codes_.data() + row * code_stride_ + first,
                 scales_.data() + at, sums_.data() + at * kSumsPerGroup);
  for (size_t i = 0; i < groups; ++i) SetBias(at + i);
}

void Activations::SetCodes(size_t row, const char* codes, const char* scales) {
  RF_CHECK(form_ == Form::kInt8 && row < rows_);
  if (columns_ == 0) return;
  int8_t* const own = codes_.data() + row * code_stride_;
  std::memcpy(own, codes, columns_);
  std::fill(own + columns_, own + code_stride_, 0);
  std::memcpy(scales_.data() + row * groups_, scales, groups_ * sizeof(float));
  for (size_t group = 0; group < groups_; ++group) {
    const int8_t* const of_group = own + group * kActivationGroup;
    const size_t at = row * groups_ + group;
    for (size_t i = 0; i < kSumsPerGroup; ++i) {
      const int8_t* const part = of_group + i * kInt4Group;
      sums_[at * kSumsPerGroup + i] =
          std::accumulate(part, part + kInt4Group, 0);
    }
    SetBias(at);
  }
}

void Activations::SetBias(size_t at) {
  const int32_t* const sums = sums_.data() + at * kSumsPerGroup;
  biases_[at] = 128 * std::accumulate(sums, sums + kSumsPerGroup, 0);
}

size_t Activations::StoredRowBytes() const {
  if (form_ == Form::kF32) return columns_ * sizeof(float);
  return columns_ + groups_ * sizeof(float);
}

void Activations::StoreRow(size_t row, char* destination) const {
  if (columns_ == 0) return;  // Nor is there memory for them.
  if (form_ == Form::kF32) {
    std::memcpy(destination, Values(row), columns_ * sizeof(float));
    return;
  }
  std::memcpy(destination, Codes(row), columns_);
  std::memcpy(destination + columns_, Scales(row), groups_ * sizeof(float));
}

void Activations::LoadRow(size_t row, const char* stored) {
  RF_CHECK(row < rows_);
  if (columns_ == 0) return;
  if (form_ == Form::kF32) {
    std::memcpy(own_values_.data() + row * columns_, stored,
                columns_ * sizeof(float));
    return;
  }
  SetCodes(row, stored, stored + columns_);
}

}  // namespace ringfleet::kernels
