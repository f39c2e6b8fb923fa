// SPDX-License-Identifier: Apache-2.0
// Symmetric integer codes of groups of numbers: value ~ scale * code. The same
// bits on every instruction set: the maximum is exact, every other operation
// is one IEEE operation, and codes round to nearest even.
#ifndef RINGFLEET_KERNELS_PRODUCTS_QUANTIZE_H_
#define RINGFLEET_KERNELS_PRODUCTS_QUANTIZE_H_

#include <cstddef>
#include <cstdint>

namespace ringfleet::kernels {

// Activations share a scale over so many consecutive elements, counted from
// the start of a row; a row's last group may be shorter. Half of what the
// checkpoints were trained with (128: DeepSeek-V3, arXiv:2412.19437, section
// 3.3.2): on tiny-v3 with int8 weights the mean KL falls from 3.8e-3 to 3.3e-3
// nats, for 7 to 10 % of the rate of large products.
inline constexpr size_t kActivationGroup = 64;
// int4 weights share a scale over so many inputs.
inline constexpr size_t kInt4Group = 32;
static_assert(kActivationGroup % kInt4Group == 0);

// A largest magnitude below it gives codes of 0 and a scale of 0: 127 / x might
// not be finite.
inline constexpr float kSmallestQuantized = 1e-30f;

// codes[i] = round(x[i] * 127 / max |x|), -127 to 127. Returns the scale
// max |x| / 127; 0, with codes of 0, when no |x| reaches kSmallestQuantized;
// NaN, with codes of 0, when an x is not finite, so that a product shows it.
float QuantizeInt8(const float* x, size_t count, int8_t* codes);

// QuantizeInt8 of every kActivationGroup consecutive elements of x [count], the
// last ones fewer, with zeros up to a whole group behind the codes, and the sum
// of every kInt4Group codes:
//   codes [groups * kActivationGroup]   scales [groups]
//   sums [groups * kActivationGroup / kInt4Group]
void QuantizeGroups(const float* x, size_t count, int8_t* codes, float* scales,
                    int32_t* sums);

// codes[i] in 0..15 for the values (codes[i] - 8) * scale, count <= 32. The
// scale returned is a bfloat16, and of some candidates around the two that map
// the largest magnitude to -8 or 7.5 the one with the least squared error.
// Requires finite w.
float QuantizeInt4(const float* w, size_t count, uint8_t* codes);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_QUANTIZE_H_
