// SPDX-License-Identifier: Apache-2.0
// Conversions of floats to and from the elements that travel between ranks, and
// sums straight out of received bytes.
//
// Elements are little-endian; `bytes` and `codes` may have any alignment. Sums
// are float32. Product and addition round one after the other, so every
// instruction set gives the same bits. NaNs stay NaNs, but the sum of two NaNs
// may be either. Thread-safe for distinct outputs; allocates nothing. Inputs
// and outputs must not overlap, except that `base` may be `sum`.
#ifndef RINGFLEET_KERNELS_REDUCE_H_
#define RINGFLEET_KERNELS_REDUCE_H_

#include <cstddef>

namespace ringfleet::kernels {

// sum[i] = base[i] + element i; elements are float32.
void AddF32(const char* bytes, size_t count, const float* base, float* sum);

// bfloat16 elements. Encoding rounds to nearest even and keeps infinities and
// NaNs, bit for bit as FloatToBf16 does.
void EncodeBf16(const float* values, size_t count, char* bytes);
void DecodeBf16(const char* bytes, size_t count, float* out);
void AddBf16(const char* bytes, size_t count, const float* base, float* sum);

// Elements of an int8 group, which share one scale. 128 float32 values become
// 132 bytes, 3 % more than their codes. DeepSeek-V3 quantises activations in
// groups of this size (arXiv:2412.19437, section 3.3.2).
inline constexpr size_t kInt8GroupElements = 128;

// Quantises one group of `count` <= kInt8GroupElements values symmetrically and
// returns its scale: with m = max |values[i]|,
//
//   scale = m / 127      codes[i] = round(values[i] * (127 / m))
//
// in float32, rounded to nearest even; codes lie in [-127, 127], and decoding
// is off by at most half a scale plus the rounding of these three operations.
// A group whose 127 / m overflows (m < 3.74e-37, zeros included) gets scale 0
// and codes 0. A group with an infinity or a NaN gets a NaN scale and codes 0:
// it decodes to NaNs, so the fault stays visible. A code of 127 may decode to
// infinity if m is the largest float or next to it.
float EncodeInt8Group(const float* values, size_t count, char* codes);

// out[i] = codes[i] * scale. `count` may be a part of a group.
void DecodeInt8Group(const char* codes, size_t count, float scale, float* out);

// sum[i] = base[i] + codes[i] * scale, the product rounded first.
void AddInt8Group(const char* codes, size_t count, float scale,
                  const float* base, float* sum);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_REDUCE_H_
