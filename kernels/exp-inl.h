// SPDX-License-Identifier: Apache-2.0
// exp in float32 from additions and multiplications only, without branches.
// Every host, and every way to cut a loop, gets the same bits.
#ifndef RINGFLEET_KERNELS_EXP_INL_H_
#define RINGFLEET_KERNELS_EXP_INL_H_

#include <bit>
#include <cstdint>

#include "kernels/f32x4.h"

namespace ringfleet::kernels {

// See DeterministicExp in router.h.
inline F32x4 Exp(F32x4 x) {
  using I32x4 = int32_t __attribute__((vector_size(16)));
  using U32x4 = uint32_t __attribute__((vector_size(16)));
  // exp(-87.3) is just above 2^-126, the smallest normal number; exp(88.7) is
  // just below the largest.
  constexpr float kLowest = -87.3f;
  constexpr float kHighest = 88.7f;
  constexpr float kLog2E = 1.44269504f;
  // ln 2 in two parts: n * kLn2High is exact for the |n| <= 128 used here.
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  // 1.5 * 2^23: adding it leaves the nearest integer in the low mantissa bits.
  constexpr float kRound = 12582912.0f;

  const F32x4 zero = {};
  F32x4 clamped = x > kHighest ? zero + kHighest : x;  // NaN passes both.
  clamped = clamped < kLowest ? zero + kLowest : clamped;
  const F32x4 shifted = clamped * kLog2E + kRound;
  const F32x4 n = shifted - kRound;
  const F32x4 r = (clamped - n * kLn2High) - n * kLn2Low;
  // Minimax polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes, expf).
  F32x4 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors: n = 128 has no float32 of its own.
  const U32x4 exponent =
      reinterpret_cast<U32x4>(shifted) - std::bit_cast<uint32_t>(kRound);
  const U32x4 half =
      reinterpret_cast<U32x4>(reinterpret_cast<I32x4>(exponent) >> 1);
  const F32x4 scale0 = reinterpret_cast<F32x4>((half + 127u) << 23);
  const F32x4 scale1 = reinterpret_cast<F32x4>((exponent - half + 127u) << 23);
  const F32x4 result = p * scale0 * scale1;
  return x < kLowest ? zero : result;
}

inline float Exp(float x) { return Exp(F32x4{x, x, x, x})[0]; }

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_EXP_INL_H_
