// SPDX-License-Identifier: Apache-2.0
// Symmetric integer codes of groups of numbers: value ~ scale * code. Every
// instruction set gives the same bits: the maximum is exact, every other
// operation is one IEEE operation, and codes round to nearest even.
#ifndef RINGFLEET_KERNELS_PRODUCTS_QUANTIZE_H_
#define RINGFLEET_KERNELS_PRODUCTS_QUANTIZE_H_

#include <cstddef>
#include <cstdint>

namespace ringfleet::kernels {

// Elements of a row of activations that share a scale, counted from the row's
// start; the last group may be shorter. Checkpoints were trained with 128
// (DeepSeek-V3, arXiv:2412.19437, section 3.3.2). With 64 the mean KL of
// tiny-v3 with int8 weights is 3.3e-3 nats instead of 3.8e-3, for 7 to 10 % of
// the rate of large products.
inline constexpr size_t kActivationGroup = 64;
// Inputs that share a scale in an output of int4 weights.
inline constexpr size_t kInt4Group = 32;
static_assert(kActivationGroup % kInt4Group == 0);

// A group whose largest magnitude x is below this value has codes of 0: 127 / x
// might not be finite.
inline constexpr float kSmallestQuantized = 1e-30f;

// codes[i] = round(x[i] * 127 / max |x|), -127 to 127. Returns the scale
// max |x| / 127. Returns 0, with codes of 0, if no |x| reaches
// kSmallestQuantized. Returns NaN, with codes of 0, if an x is not finite, so
// that a product shows the fault.
float QuantizeInt8(const float* x, size_t count, int8_t* codes);

// Quantises groups of kActivationGroup consecutive elements of x [count] as
// QuantizeInt8 does. The last group may be shorter. Puts zeros behind the codes
// up to a whole group, and adds up every kInt4Group codes:
//   codes [groups * kActivationGroup]   scales [groups]
//   sums [groups * kActivationGroup / kInt4Group]
void QuantizeGroups(const float* x, size_t count, int8_t* codes, float* scales,
                    int32_t* sums);

// Quantises `count` <= 32 values: w[i] ~ (codes[i] - 8) * scale, codes in
// 0..15. Returns the scale, a bfloat16. Candidates lie around the two scales
// that map the largest magnitude to -8 or 7.5. The candidate with the least
// squared error is taken. Requires finite w.
float QuantizeInt4(const float* w, size_t count, uint8_t* codes);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_QUANTIZE_H_
