// SPDX-License-Identifier: Apache-2.0
// Element types of checkpoints, weights, caches and wires, and conversions of
// single values. All rounding is to nearest even.
#ifndef RINGFLEET_KERNELS_DTYPE_H_
#define RINGFLEET_KERNELS_DTYPE_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace ringfleet::kernels {

// kInt8 elements are codes; their scales lie elsewhere. kF8E8M0 elements are
// powers of two: scales of codes. Only checkpoints have the last three types.
enum class Dtype : uint8_t {
  kF32,
  kBf16,
  kF16,
  kF8E4M3,
  kInt8,
  kF8E8M0,
  kInt32,
  kInt64
};

// Bytes of one element.
size_t DtypeBytes(Dtype dtype);
// "f32", "bf16", "f16", "f8_e4m3", "int8", "f8_e8m0", "int32", "int64".
absl::string_view DtypeName(Dtype dtype);

inline float Bf16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {  // Keep a NaN a quiet NaN.
    return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Rounds `value` to bfloat16 and widens it again.
inline float RoundToBf16(float value) {
  return Bf16ToFloat(FloatToBf16(value));
}

float F16ToFloat(uint16_t bits);

// e4m3fn (OCP 8-bit floating point, "FN" variant): no infinities, 0x7F and
// 0xFF are NaN, largest finite 448.
float F8E4M3ToFloat(uint8_t bits);

// e8m0 (OCP microscaling formats 1.0, section 5.4.1): 2^(bits - 127). 0xFF is
// NaN.
float F8E8M0ToFloat(uint8_t bits);

// Widens `count` elements of `dtype` at `source` (of any alignment) to float32.
// Exact, but for integers of more than 24 bits. Codes of int8 are not scaled.
void ToFloat(Dtype dtype, const void* source, size_t count, float* destination);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_DTYPE_H_
