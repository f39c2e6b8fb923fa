// SPDX-License-Identifier: Apache-2.0
// One pass from the fp8 of the published checkpoints to int8, without float32
// in between.
#ifndef RINGFLEET_KERNELS_PRODUCTS_QUANTIZE_F8_H_
#define RINGFLEET_KERNELS_PRODUCTS_QUANTIZE_F8_H_

#include <cstdint>

#include "kernels/products/code_row.h"

namespace ringfleet::kernels {

// Gives `codes` and `scale` the bits that QuantizeInt8 gives for the row as
// WidenCodes widens it. Returns false, with both undefined, when a value is not
// finite. Requires codes of kF8E4M3, whose blocks are those of
// arXiv:2412.19437, section 3.3.
bool QuantizeInt8(const CodeRow& row, int8_t* codes, float* scale);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_QUANTIZE_F8_H_
