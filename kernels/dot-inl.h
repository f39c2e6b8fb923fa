// SPDX-License-Identifier: Apache-2.0
// The inner loops of products and of attention, for weights and caches of
// float32 and bfloat16 (held as uint16_t, widened on the fly).
//
// Vectors are written as GCC's and Clang's vector types, four lanes wide as in
// SSE: a plain array of 16 sums is kept in memory by GCC 12 and costs a load
// and a store per addition. Each row's operations and their order are the same
// for every N, so that how rows are grouped never shows in a result.
#ifndef RINGFLEET_KERNELS_DOT_INL_H_
#define RINGFLEET_KERNELS_DOT_INL_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/dtype.h"

namespace ringfleet::kernels {

// Rows that share one pass over a weight row: 3 x 16 sums take 12 of SSE's 16
// registers.
inline constexpr size_t kDotRows = 3;

using F32x4 = float __attribute__((vector_size(16)));

inline float Widen(float value) { return value; }
inline float Widen(uint16_t bits) { return Bf16ToFloat(bits); }

inline void Load16(const float* source, F32x4 (&values)[4]) {
  std::memcpy(values, source, sizeof(values));
}

inline void Load16(const uint16_t* source, F32x4 (&values)[4]) {
  using U16x8 = uint16_t __attribute__((vector_size(16)));
  const U16x8 zero = {};
  U16x8 bits[2];
  std::memcpy(bits, source, sizeof(bits));
  for (int i = 0; i < 2; ++i) {
    values[2 * i] = reinterpret_cast<F32x4>(
        __builtin_shufflevector(zero, bits[i], 0, 8, 1, 9, 2, 10, 3, 11));
    values[2 * i + 1] = reinterpret_cast<F32x4>(
        __builtin_shufflevector(zero, bits[i], 4, 12, 5, 13, 6, 14, 7, 15));
  }
}

// Adds up 16 partial sums: p and p + 8, then p + 4, p + 2, p + 1.
inline float SumTree(const F32x4 (&sums)[4]) {
  const F32x4 v = (sums[0] + sums[2]) + (sums[1] + sums[3]);
  return (v[0] + v[2]) + (v[1] + v[3]);
}

// out[n] = sum_k rows[n][k] * w[k]; partial sum p takes the elements 16 i + p.
template <int N, typename Element>
inline void DotRows(const Element* w, const float* const* rows, size_t size,
                    float* out) {
  const float* x[N];
  for (int n = 0; n < N; ++n) x[n] = rows[n];
  F32x4 sums[N][4] = {};
  size_t i = 0;
  for (; i + 16 <= size; i += 16) {
    F32x4 weights[4];
    Load16(w + i, weights);
    for (int q = 0; q < 4; ++q) {
      for (int n = 0; n < N; ++n) {
        F32x4 v;
        std::memcpy(&v, x[n] + i + 4 * q, sizeof(v));
        sums[n][q] += v * weights[q];
      }
    }
  }
  for (int n = 0; n < N; ++n) {
    for (size_t p = 0; i + p < size; ++p) {
      sums[n][p / 4][p % 4] += x[n][i + p] * Widen(w[i + p]);
    }
    out[n] = SumTree(sums[n]);
  }
}

// out[n][c] = old_factor[n] * out[n][c]
//             + new_factor[n] * sum_t scales[n][t] * w[t * stride + c]
// for c < size; t < count in ascending order.
template <int N, typename Element>
inline void WeightedSumRows(const Element* w, size_t stride, size_t count,
                            const float* const* scales, size_t size,
                            const float* old_factor, const float* new_factor,
                            float* const* out) {
  size_t c = 0;
  for (; c + 16 <= size; c += 16) {
    F32x4 sums[N][4] = {};
    for (size_t t = 0; t < count; ++t) {
      F32x4 weights[4];
      Load16(w + t * stride + c, weights);
      for (int n = 0; n < N; ++n) {
        for (int q = 0; q < 4; ++q) sums[n][q] += weights[q] * scales[n][t];
      }
    }
    for (int n = 0; n < N; ++n) {
      F32x4 total[4];
      std::memcpy(total, out[n] + c, sizeof(total));
      for (int q = 0; q < 4; ++q) {
        total[q] = total[q] * old_factor[n] + sums[n][q] * new_factor[n];
      }
      std::memcpy(out[n] + c, total, sizeof(total));
    }
  }
  for (; c < size; ++c) {
    for (int n = 0; n < N; ++n) {
      float sum = 0;
      for (size_t t = 0; t < count; ++t) {
        sum += Widen(w[t * stride + c]) * scales[n][t];
      }
      out[n][c] = out[n][c] * old_factor[n] + sum * new_factor[n];
    }
  }
}

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_DOT_INL_H_
