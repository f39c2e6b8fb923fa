// SPDX-License-Identifier: Apache-2.0
// exp in float32 from additions and multiplications only, without branches, so
// that loops over it are vectorised and every host gets the same bits.
#ifndef RINGFLEET_KERNELS_EXP_INL_H_
#define RINGFLEET_KERNELS_EXP_INL_H_

#include <bit>
#include <cstdint>

namespace ringfleet::kernels {

// See DeterministicExp in router.h.
inline float ExpInline(float x) {
  // exp(-87.3) is the last result above 2^-126, the smallest normal number;
  // exp(88.7) is just below the largest.
  constexpr float kLowest = -87.3f;
  constexpr float kHighest = 88.7f;
  constexpr float kLog2E = 1.44269504f;
  // ln 2 in two parts: n * kLn2High is exact for the |n| <= 128 used here.
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  // 1.5 * 2^23: adding it leaves the nearest integer in the low mantissa bits.
  constexpr float kRound = 12582912.0f;

  float clamped = x > kHighest ? kHighest : x;  // NaN passes both.
  clamped = clamped < kLowest ? kLowest : clamped;
  const float shifted = clamped * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  // Minimax polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes, expf).
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors: n = 128 has no float32 of its own.
  const int32_t exponent = static_cast<int32_t>(
      std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound));
  const int32_t half = exponent >> 1;
  const float scale0 =
      std::bit_cast<float>((static_cast<uint32_t>(half) + 127u) << 23);
  const float scale1 = std::bit_cast<float>(
      (static_cast<uint32_t>(exponent - half) + 127u) << 23);
  const float result = p * scale0 * scale1;
  return x < kLowest ? 0.0f : result;
}

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_EXP_INL_H_
