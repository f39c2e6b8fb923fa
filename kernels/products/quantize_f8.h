// SPDX-License-Identifier: Apache-2.0
// One pass from the fp8 of the published checkpoints to int8, without float32
// in between.
#ifndef RINGFLEET_KERNELS_PRODUCTS_QUANTIZE_F8_H_
#define RINGFLEET_KERNELS_PRODUCTS_QUANTIZE_F8_H_

#include <cstddef>
#include <cstdint>

namespace ringfleet::kernels {

// A row of e4m3 codes. Each `block` of them shares a scale (arXiv:2412.19437,
// section 3.3). The row begins `offset` codes behind the start of a block.
struct F8Row {
  const uint8_t* codes = nullptr;
  size_t count = 0;
  const float* scales = nullptr;  // Finite, not negative.
  size_t block = 1;
  size_t offset = 0;  // Less than `block`.
};

// Gives `codes` and `scale` the bits that QuantizeInt8 gives for the row as
// WidenScaled widens it. Returns false, with both undefined, when a value is
// not finite.
bool QuantizeInt8(const F8Row& row, int8_t* codes, float* scale);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_QUANTIZE_F8_H_
