// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/weight_matrix.h"

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

// The baseline's namespace, for which this file is compiled.
namespace hn = hwy::HWY_NAMESPACE;

uint64_t DivideUp(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

// Columns that one row has in a step.
size_t StepColumns(WeightForm form) {
  switch (form) {
    case WeightForm::kF32:
      return kStepLaneBytes / sizeof(float);
    case WeightForm::kBf16:
      return kStepLaneBytes / sizeof(uint16_t);
    default:
      return kStepColumns;
  }
}

// Bytes of one panel; saturates.
uint64_t PanelBytes(WeightForm form, uint64_t columns) {
  const bool int4 = form == WeightForm::kInt4;
  const uint64_t scales =
      form == WeightForm::kInt8 ? kPanelRows * sizeof(float) : 0;
  uint64_t bytes = 0;
  return __builtin_mul_overflow(
             DivideUp(columns, int4 ? kInt4Group : StepColumns(form)),
             int4 ? kInt4GroupBytes : kStepBytes, &bytes) ||
                 __builtin_add_overflow(bytes, scales, &bytes)
             ? std::numeric_limits<uint64_t>::max()
             : bytes;
}

// A step has kInt8's codes as code + 128, without a carry between the bytes.
uint32_t Offsets(WeightForm form) {
  return form == WeightForm::kInt8 ? 0x80808080u : 0;
}

// Stores one row. The rows of a step lie one behind the other, four bytes each.
// `bytes` are whole steps.
void StoreSteps(const char* row, size_t bytes, uint32_t offsets,
                uint8_t* step) {
  for (size_t i = 0; i < bytes; i += kStepLaneBytes, step += kStepBytes) {
    uint32_t four;
    std::memcpy(&four, row + i, sizeof(four));
    four ^= offsets;
    std::memcpy(step, &four, sizeof(four));
  }
}

// Stores 16 rows: a cache line of every step. `rows` can be read up to the next
// 16 bytes.
void StoreSteps16(const char* rows, size_t stride, size_t bytes,
                  uint32_t offsets_of_codes, uint8_t* step) {
  const hn::FixedTag<uint32_t, 4> d;
  const hn::Repartition<uint64_t, decltype(d)> d64;
  const auto offsets = hn::Set(d, offsets_of_codes);
  for (size_t i = 0; i < bytes; i += 4 * kStepLaneBytes) {
    // By four rows: one step's codes of these rows in each vector.
    hn::Vec<decltype(d)> steps[4][4];
    for (size_t four = 0; four < 4; ++four) {
      const auto row = [&](size_t r) {
        const char* from = rows + (4 * four + r) * stride + i;
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
    const size_t count = std::min<size_t>(4, (bytes - i) / kStepLaneBytes);
    for (size_t s = 0; s < count; ++s, step += kStepBytes) {
      for (size_t four = 0; four < 4; ++four) {
        hn::StoreU(steps[s][four], d,
                   reinterpret_cast<uint32_t*>(step) + 4 * four);
      }
    }
  }
}

// Puts eight codes of four bits, the first in the lowest bits, in the order of
// a pair of steps: 0, 4, 1, 5, 2, 6, 3, 7.
uint32_t PairOfSteps(uint32_t codes) {
  const auto spread = [](uint32_t four) {  // Four bits to each byte.
    four = (four | four << 8) & 0x00ff00ffu;
    return (four | four << 4) & 0x0f0f0f0fu;
  };
  return spread(codes & 0xffffu) | spread(codes >> 16) << 4;
}

// Stores a group of a row: codes + 8 of kInt4Group columns, in four bits each.
void StoreInt4Group(const uint8_t* codes, float scale, size_t lane,
                    uint8_t* group) {
  reinterpret_cast<uint16_t*>(group)[lane] = FloatToBf16(scale);
  uint8_t* pair = group + kInt4ScaleBytes + lane * kStepLaneBytes;
  for (size_t i = 0; i < kInt4Group / 2; i += kStepLaneBytes) {
    uint32_t eight;
    std::memcpy(&eight, codes + i, sizeof(eight));
    eight = PairOfSteps(eight);
    std::memcpy(pair, &eight, sizeof(eight));
    pair += kStepBytes;
  }
}

void StoreInt4Row(const float* values, size_t columns, size_t lane,
                  uint8_t* panel) {
  for (size_t first = 0; first < columns;
       first += kInt4Group, panel += kInt4GroupBytes) {
    uint8_t codes[kInt4Group];
    std::fill(codes, codes + kInt4Group, 8);
    const float scale = QuantizeInt4(
        values + first, std::min(kInt4Group, columns - first), codes);
    uint8_t packed[kInt4Group / 2];
    for (size_t i = 0; i < kInt4Group / 2; ++i) {
      packed[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
    }
    StoreInt4Group(packed, scale, lane, panel);
  }
}

// Element `column` of a row of kF32, kBf16, or kInt8's code of it.
template <typename Element>
Element StepElement(const uint8_t* panel, size_t lane, size_t column) {
  constexpr size_t kColumns = kStepLaneBytes / sizeof(Element);
  Element element;
  std::memcpy(&element,
              panel + column / kColumns * kStepBytes + lane * kStepLaneBytes +
                  column % kColumns * sizeof(Element),
              sizeof(element));
  return element;
}

void LoadInt8Row(const uint8_t* panel, size_t columns, size_t lane,
                 float* values) {
  const size_t steps = DivideUp(columns, kStepColumns);
  float scale;
  std::memcpy(&scale, panel + steps * kStepBytes + lane * sizeof(float),
              sizeof(scale));
  for (size_t i = 0; i < columns; ++i) {
    values[i] =
        static_cast<float>(StepElement<uint8_t>(panel, lane, i) - 128) * scale;
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
  constexpr absl::string_view kNames[] = {
      "f32", "bf16", "int8", "int4", "f32 rows", "bf16 rows", "reference"};
  return kNames[static_cast<size_t>(form)];
}

uint64_t WeightMatrix::Bytes(WeightForm form, uint64_t rows, uint64_t columns) {
  uint64_t bytes = 0;
  const bool overflows =
      IsRows(form)
          ? __builtin_mul_overflow(rows, columns, &bytes) ||
                __builtin_mul_overflow(
                    bytes, form == WeightForm::kBf16Rows ? 2u : 4u, &bytes)
          : __builtin_mul_overflow(DivideUp(rows, kPanelRows),
                                   columns == 0 ? 0 : PanelBytes(form, columns),
                                   &bytes);
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
      panel_bytes_(IsRows(form) || columns == 0 ? 0
                                                : PanelBytes(form, columns)),
      buffer_(std::move(buffer)) {}

void WeightMatrix::SetRow(size_t row, const float* values) {
  RF_CHECK(row < rows_ && keeper_ == nullptr);
  if (columns_ == 0) return;
  const auto set_rounded = [&](auto element, auto round) {
    using Element = decltype(element);
    std::vector<Element> rounded(DivideUp(columns_, StepColumns(form_)) *
                                 StepColumns(form_));
    const float scale = round(rounded.data());
    SetRoundedRows(row, 1, reinterpret_cast<const char*>(rounded.data()),
                   rounded.size() * sizeof(Element), &scale);
  };
  char* const own = IsRows(form_)
                        ? buffer_.data() + row * columns_ * element_bytes()
                        : nullptr;
  switch (form_) {
    case WeightForm::kF32:
      return set_rounded(float(), [&](float* elements) {
        std::copy_n(values, columns_, elements);
        return 0.0f;
      });
    case WeightForm::kBf16:
      return set_rounded(uint16_t(), [&](uint16_t* elements) {
        FloatToBf16(values, columns_, elements);
        return 0.0f;
      });
    case WeightForm::kInt8:
      return set_rounded(int8_t(), [&](int8_t* codes) {
        return QuantizeInt8(values, columns_, codes);
      });
    case WeightForm::kInt4:
      return StoreInt4Row(values, columns_, row % kPanelRows,
                          MutablePanel(row / kPanelRows));
    case WeightForm::kF32Rows:
    case WeightForm::kReference:
      std::memcpy(own, values, columns_ * sizeof(float));
      return;
    case WeightForm::kBf16Rows:
      return FloatToBf16(values, columns_, reinterpret_cast<uint16_t*>(own));
  }
}

void WeightMatrix::SetRoundedRows(size_t row, size_t count, const char* rows,
                                  size_t stride, const float* scales) {
  const size_t lane = row % kPanelRows;
  RF_CHECK(!IsRows(form_) && form_ != WeightForm::kInt4 && keeper_ == nullptr &&
           row + count <= rows_ && lane + count <= kPanelRows);
  if (columns_ == 0) return;
  const size_t steps = DivideUp(columns_, StepColumns(form_));
  const size_t bytes = steps * kStepLaneBytes;
  uint8_t* const panel = MutablePanel(row / kPanelRows);
  uint8_t* step = panel + lane * kStepLaneBytes;
  if (count == 16) {
    StoreSteps16(rows, stride, bytes, Offsets(form_), step);
  } else {
    for (size_t i = 0; i < count; ++i, step += kStepLaneBytes) {
      StoreSteps(rows + i * stride, bytes, Offsets(form_), step);
    }
  }
  if (form_ == WeightForm::kInt8) {
    std::memcpy(panel + steps * kStepBytes + lane * sizeof(float), scales,
                count * sizeof(float));
  }
}

void WeightMatrix::SetInt4Row(size_t row, const uint8_t* codes,
                              const float* scales) {
  RF_CHECK(form_ == WeightForm::kInt4 && row < rows_ && keeper_ == nullptr);
  uint8_t* group = MutablePanel(row / kPanelRows);
  for (size_t first = 0; first < columns_; first += kInt4Group) {
    const size_t count = std::min(kInt4Group, columns_ - first);
    uint8_t whole[kInt4Group / 2];  // Codes of 0 behind the last column.
    std::memset(whole, 0x88, sizeof(whole));
    std::memcpy(whole, codes + first / 2, count / 2);
    if (count % 2 != 0) {
      whole[count / 2] =
          static_cast<uint8_t>((codes[(first + count) / 2] & 15) | 0x80);
    }
    StoreInt4Group(whole, *scales++, row % kPanelRows, group);
    group += kInt4GroupBytes;
  }
}

void WeightMatrix::GetRow(size_t row, float* values) const {
  RF_CHECK(row < rows_);
  if (columns_ == 0) return;
  const size_t lane = row % kPanelRows;
  switch (form_) {
    case WeightForm::kF32:
      for (size_t i = 0; i < columns_; ++i) {
        values[i] = StepElement<float>(Panel(row / kPanelRows), lane, i);
      }
      return;
    case WeightForm::kBf16:
      for (size_t i = 0; i < columns_; ++i) {
        values[i] = Bf16ToFloat(
            StepElement<uint16_t>(Panel(row / kPanelRows), lane, i));
      }
      return;
    case WeightForm::kInt8:
      return LoadInt8Row(Panel(row / kPanelRows), columns_, lane, values);
    case WeightForm::kInt4:
      return LoadInt4Row(Panel(row / kPanelRows), columns_, lane, values);
    case WeightForm::kF32Rows:
    case WeightForm::kReference:
      std::memcpy(values, Row(row), columns_ * sizeof(float));
      return;
    case WeightForm::kBf16Rows:
      return Bf16ToFloat(static_cast<const uint16_t*>(Row(row)), columns_,
                         values);
  }
}

}  // namespace ringfleet::kernels
