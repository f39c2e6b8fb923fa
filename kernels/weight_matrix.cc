// SPDX-License-Identifier: Apache-2.0
#include "kernels/weight_matrix.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "hwy/highway.h"
#include "kernels/check.h"
#include "kernels/dtype.h"
#include "kernels/elementwise.h"

namespace ringfleet::kernels {
namespace {

namespace hn =
    hwy::HWY_NAMESPACE;  // Of the baseline, for which all is compiled.

uint64_t DivideUp(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

// Of one panel of an integer form; saturates.
uint64_t PanelBytes(WeightForm form, uint64_t columns) {
  uint64_t bytes = 0;
  if (form == WeightForm::kInt8) {
    if (__builtin_mul_overflow(DivideUp(columns, kStepColumns), kStepBytes,
                               &bytes) ||
        __builtin_add_overflow(bytes, kPanelRows * sizeof(float), &bytes)) {
      return std::numeric_limits<uint64_t>::max();
    }
  } else if (__builtin_mul_overflow(DivideUp(columns, kInt4Group),
                                    kInt4GroupBytes, &bytes)) {
    return std::numeric_limits<uint64_t>::max();
  }
  return bytes;
}

bool IsPacked(WeightForm form) {
  return form == WeightForm::kInt8 || form == WeightForm::kInt4;
}

// As a step has them: code + 128, without a carry between the bytes.
constexpr uint32_t kOffsets = 0x80808080u;

// The codes of rows lie in every step one behind the other, four bytes each.
// `padded` columns are whole steps.
void StoreSteps(const int8_t* codes, size_t padded, uint8_t* step) {
  for (size_t i = 0; i < padded; i += kStepColumns, step += kStepBytes) {
    uint32_t four;
    std::memcpy(&four, codes + i, sizeof(four));
    four ^= kOffsets;
    std::memcpy(step, &four, sizeof(four));
  }
}

// Of 16 rows: a cache line of every step. `codes` can be read up to the next 16
// columns.
void StoreSteps16(const int8_t* codes, size_t stride, size_t padded,
                  uint8_t* step) {
  const hn::FixedTag<uint32_t, 4> d;
  const hn::Repartition<uint64_t, decltype(d)> d64;
  const auto offsets = hn::Set(d, kOffsets);
  for (size_t i = 0; i < padded; i += 4 * kStepColumns) {
    // By four rows: one step's codes of these rows in each vector.
    hn::Vec<decltype(d)> steps[4][4];
    for (size_t four = 0; four < 4; ++four) {
      const auto row = [&](size_t r) {
        const int8_t* from = codes + (4 * four + r) * stride + i;
        return hn::LoadU(d, reinterpret_cast<const uint32_t*>(from));
      };
      const auto low01 = hn::InterleaveLower(d, row(0), row(1));
      const auto low23 = hn::InterleaveLower(d, row(2), row(3));
      const auto high01 = hn::InterleaveUpper(d, row(0), row(1));
      const auto high23 = hn::InterleaveUpper(d, row(2), row(3));
      const auto pair = [&](bool upper, auto first, auto second) {
        const auto a = hn::BitCast(d64, first);
        const auto b = hn::BitCast(d64, second);
        return hn::Xor(hn::BitCast(d, upper ? hn::InterleaveUpper(d64, a, b)
                                            : hn::InterleaveLower(d64, a, b)),
                       offsets);
      };
      steps[0][four] = pair(false, low01, low23);
      steps[1][four] = pair(true, low01, low23);
      steps[2][four] = pair(false, high01, high23);
      steps[3][four] = pair(true, high01, high23);
    }
    const size_t count = std::min<size_t>(4, (padded - i) / kStepColumns);
    for (size_t s = 0; s < count; ++s, step += kStepBytes) {
      for (size_t four = 0; four < 4; ++four) {
        hn::StoreU(steps[s][four], d,
                   reinterpret_cast<uint32_t*>(step) + 4 * four);
      }
    }
  }
}

void StoreInt8Row(const float* values, size_t columns, size_t lane,
                  uint8_t* panel) {
  const size_t padded = DivideUp(columns, kStepColumns) * kStepColumns;
  std::vector<int8_t> codes(padded);
  const float scale = QuantizeInt8(values, columns, codes.data());
  StoreSteps(codes.data(), padded, panel + lane * kStepColumns);
  std::memcpy(panel + padded * kPanelRows + lane * sizeof(scale), &scale,
              sizeof(scale));
}

void StoreInt4Row(const float* values, size_t columns, size_t lane,
                  uint8_t* panel) {
  for (size_t first = 0; first < columns;
       first += kInt4Group, panel += kInt4GroupBytes) {
    uint8_t codes[kInt4Group];
    std::fill(codes, codes + kInt4Group, 8);
    const float scale = QuantizeInt4(
        values + first, std::min(kInt4Group, columns - first), codes);
    reinterpret_cast<uint16_t*>(panel)[lane] = FloatToBf16(scale);
    uint8_t* pair = panel + kInt4ScaleBytes + lane * kStepColumns;
    for (size_t i = 0; i < kInt4Group;
         i += 2 * kStepColumns, pair += kStepBytes) {
      for (size_t j = 0; j < kStepColumns; ++j) {
        pair[j] = static_cast<uint8_t>(codes[i + j] |
                                       (codes[i + kStepColumns + j] << 4));
      }
    }
  }
}

void LoadInt8Row(const uint8_t* panel, size_t columns, size_t lane,
                 float* values) {
  const size_t steps = DivideUp(columns, kStepColumns);
  float scale;
  std::memcpy(&scale, panel + steps * kStepBytes + lane * sizeof(float),
              sizeof(scale));
  for (size_t i = 0; i < columns; ++i) {
    const int code = panel[i / kStepColumns * kStepBytes + lane * kStepColumns +
                           i % kStepColumns];
    values[i] = static_cast<float>(code - 128) * scale;
  }
}

void LoadInt4Row(const uint8_t* panel, size_t columns, size_t lane,
                 float* values) {
  for (size_t i = 0; i < columns; ++i) {
    const uint8_t* group = panel + i / kInt4Group * kInt4GroupBytes;
    uint16_t scale;
    std::memcpy(&scale, group + lane * sizeof(scale), sizeof(scale));
    const size_t column = i % kInt4Group;
    const uint8_t pair =
        group[kInt4ScaleBytes + column / (2 * kStepColumns) * kStepBytes +
              lane * kStepColumns + column % kStepColumns];
    const int code = column / kStepColumns % 2 == 0 ? pair & 15 : pair >> 4;
    values[i] = static_cast<float>(code - 8) * Bf16ToFloat(scale);
  }
}

}  // namespace

absl::string_view WeightFormName(WeightForm form) {
  constexpr absl::string_view kNames[] = {"f32", "bf16", "int8", "int4"};
  return kNames[static_cast<size_t>(form)];
}

uint64_t WeightMatrix::Bytes(WeightForm form, uint64_t rows, uint64_t columns) {
  uint64_t bytes = 0;
  const bool overflows =
      IsPacked(form)
          ? __builtin_mul_overflow(DivideUp(rows, kPanelRows),
                                   columns == 0 ? 0 : PanelBytes(form, columns),
                                   &bytes)
          : __builtin_mul_overflow(rows, columns, &bytes) ||
                __builtin_mul_overflow(
                    bytes, form == WeightForm::kF32 ? 4u : 2u, &bytes);
  return overflows ? std::numeric_limits<uint64_t>::max() : bytes;
}

absl::StatusOr<WeightMatrix> WeightMatrix::Create(WeightForm form, size_t rows,
                                                  size_t columns) {
  BufferArena arena(0);
  return Create(form, rows, columns, arena);
}

absl::StatusOr<WeightMatrix> WeightMatrix::Create(WeightForm form, size_t rows,
                                                  size_t columns,
                                                  BufferArena& arena) {
  absl::StatusOr<AlignedBuffer> buffer =
      arena.Allocate(Bytes(form, rows, columns));
  if (!buffer.ok()) return buffer.status();
  return WeightMatrix(form, rows, columns, *std::move(buffer));
}

WeightMatrix WeightMatrix::View(WeightForm form, size_t rows, size_t columns,
                                const char* data,
                                std::shared_ptr<const void> keeper) {
  RF_CHECK(keeper != nullptr && reinterpret_cast<uintptr_t>(data) % 64 == 0);
  WeightMatrix matrix(form, rows, columns, AlignedBuffer());
  matrix.keeper_ = std::move(keeper);
  matrix.view_ = data;
  matrix.view_bytes_ = Bytes(form, rows, columns);
  return matrix;
}

WeightMatrix::WeightMatrix(WeightForm form, size_t rows, size_t columns)
    : WeightMatrix(form, rows, columns,
                   AlignedBuffer(Bytes(form, rows, columns))) {}

WeightMatrix::WeightMatrix(WeightForm form, size_t rows, size_t columns,
                           AlignedBuffer buffer)
    : form_(form),
      rows_(rows),
      columns_(columns),
      panel_bytes_(IsPacked(form) && columns > 0 ? PanelBytes(form, columns)
                                                 : 0),
      buffer_(std::move(buffer)) {}

void WeightMatrix::SetRow(size_t row, const float* values) {
  RF_CHECK(row < rows_ && keeper_ == nullptr);
  if (columns_ == 0) return;
  auto* panel = reinterpret_cast<uint8_t*>(buffer_.data()) +
                row / kPanelRows * panel_bytes_;
  const size_t lane = row % kPanelRows;
  switch (form_) {
    case WeightForm::kF32:
      std::memcpy(buffer_.data() + RowOffset(row), values,
                  columns_ * sizeof(float));
      return;
    case WeightForm::kBf16:
      FloatToBf16(values, columns_,
                  reinterpret_cast<uint16_t*>(buffer_.data() + RowOffset(row)));
      return;
    case WeightForm::kInt8:
      return StoreInt8Row(values, columns_, lane, panel);
    case WeightForm::kInt4:
      return StoreInt4Row(values, columns_, lane, panel);
  }
}

void WeightMatrix::SetInt8Rows(size_t row, size_t count, const int8_t* codes,
                               size_t stride, const float* scales) {
  const size_t lane = row % kPanelRows;
  RF_CHECK(form_ == WeightForm::kInt8 && keeper_ == nullptr &&
           row + count <= rows_ && lane + count <= kPanelRows);
  if (columns_ == 0) return;
  auto* panel = reinterpret_cast<uint8_t*>(buffer_.data()) +
                row / kPanelRows * panel_bytes_;
  const size_t padded = DivideUp(columns_, kStepColumns) * kStepColumns;
  uint8_t* step = panel + lane * kStepColumns;
  if (count == 16) {
    StoreSteps16(codes, stride, padded, step);
  } else {
    for (size_t i = 0; i < count; ++i, step += kStepColumns) {
      StoreSteps(codes + i * stride, padded, step);
    }
  }
  std::memcpy(panel + padded * kPanelRows + lane * sizeof(float), scales,
              count * sizeof(float));
}

void WeightMatrix::GetRow(size_t row, float* values) const {
  RF_CHECK(row < rows_);
  if (columns_ == 0) return;
  const size_t lane = row % kPanelRows;
  switch (form_) {
    case WeightForm::kF32:
      std::memcpy(values, Row(row), columns_ * sizeof(float));
      return;
    case WeightForm::kBf16:
      Bf16ToFloat(static_cast<const uint16_t*>(Row(row)), columns_, values);
      return;
    case WeightForm::kInt8:
      return LoadInt8Row(Panel(row / kPanelRows), columns_, lane, values);
    case WeightForm::kInt4:
      return LoadInt4Row(Panel(row / kPanelRows), columns_, lane, values);
  }
}

}  // namespace ringfleet::kernels
