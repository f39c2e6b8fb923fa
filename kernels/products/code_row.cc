// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/code_row.h"

#include <algorithm>

#include "kernels/dtype.h"
#include "kernels/widen.h"

namespace ringfleet::kernels {
namespace {

// Codes of kInt4 that are unpacked at a time; they stay in L1.
constexpr size_t kUnpackedCodes = 1024;

// codes[i] = code `first` + i of `packed`, without its offset of 8.
void UnpackInt4(const uint8_t* packed, size_t first, size_t count,
                int8_t* codes) {
  for (size_t i = 0; i < count; ++i) {
    const size_t at = first + i;
    codes[i] = static_cast<int8_t>((packed[at / 2] >> (at % 2 * 4) & 15) - 8);
  }
}

bool WidenInt4(const uint8_t* packed, size_t first, size_t count, float scale,
               float limit, float* values) {
  int8_t codes[kUnpackedCodes];
  bool good = true;
  for (size_t done = 0; done < count; done += kUnpackedCodes) {
    const size_t size = std::min(kUnpackedCodes, count - done);
    UnpackInt4(packed, first + done, size, codes);
    good &= WidenScaled(Dtype::kInt8, codes, size, scale, limit, values + done);
  }
  return good;
}

}  // namespace

bool WidenCodes(const CodeRow& row, float limit, float* values) {
  bool good = true;
  ForEachBlock(row, [&](size_t first, size_t count, float scale) {
    switch (row.form) {
      case CodeForm::kF8E4M3:
        good &= WidenScaled(Dtype::kF8E4M3, row.codes + first, count, scale,
                            limit, values + first);
        break;
      case CodeForm::kInt8:
        good &= WidenScaled(Dtype::kInt8, row.codes + first, count, scale,
                            limit, values + first);
        break;
      case CodeForm::kInt4:
        good &= WidenInt4(row.codes, row.skipped + first, count, scale, limit,
                          values + first);
        break;
    }
  });
  return good;
}

}  // namespace ringfleet::kernels
