// SPDX-License-Identifier: Apache-2.0
// Rows of quantised checkpoints: codes and their scales, in every encoding that
// a checkpoint may have.
#ifndef RINGFLEET_KERNELS_PRODUCTS_CODE_ROW_H_
#define RINGFLEET_KERNELS_PRODUCTS_CODE_ROW_H_

#include <cstddef>
#include <cstdint>

namespace ringfleet::kernels {

// Codes of a row.
//   kF8E4M3: a byte each.
//   kInt8: a byte each, -128..127.
//   kInt4: four bits each, the lower four of a byte first; code + 8.
enum class CodeForm : uint8_t { kF8E4M3, kInt8, kInt4 };

// Returns the bits of one code.
constexpr size_t CodeBits(CodeForm form) {
  return form == CodeForm::kInt4 ? 4 : 8;
}

// A row of codes. Value i is code i times the scale of its block. Each `block`
// codes share a scale. The row begins `offset` codes behind the start of a
// block.
struct CodeRow {
  CodeForm form = CodeForm::kF8E4M3;
  const uint8_t* codes = nullptr;
  // Codes in front of the row in its first byte: 0, or 1 in kInt4.
  size_t skipped = 0;
  size_t count = 0;
  const float* scales = nullptr;  // Finite, not negative.
  size_t block = 1;
  size_t offset = 0;  // Less than `block`.
};

// Calls part(first, count, scale) for the part of each block in the row.
template <typename Part>
void ForEachBlock(const CodeRow& row, const Part& part) {
  size_t offset = row.offset;
  const float* scale = row.scales;
  for (size_t first = 0; first < row.count; offset = 0) {
    const size_t left = row.count - first;
    const size_t count = row.block - offset < left ? row.block - offset : left;
    part(first, count, *scale++);
    first += count;
  }
}

// values[i] = code i * scale, as float32: one rounded multiplication, the same
// bits on every instruction set. Returns true if every magnitude is at most
// `limit`; a NaN's is not.
bool WidenCodes(const CodeRow& row, float limit, float* values);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_CODE_ROW_H_
