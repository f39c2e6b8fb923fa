// SPDX-License-Identifier: Apache-2.0
// The inner loops of products and of attention, for weights and caches of
// float32 and bfloat16 (held as uint16_t, widened on the fly).
//
// Sums are held in vector types: GCC 12 keeps a plain array of 16 sums in
// memory, at the cost of a load and a store per addition. Each row's operations
// and their order are the same for every N, so that how rows are grouped never
// shows in a result.
#ifndef RINGFLEET_KERNELS_DOT_INL_H_
#define RINGFLEET_KERNELS_DOT_INL_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/dtype.h"
#include "kernels/f32x4.h"

namespace ringfleet::kernels {

// Rows that share one pass over a weight row: 3 x 16 sums take 12 of SSE's 16
// registers.
inline constexpr size_t kDotRows = 3;

inline float Widen(float value) { return value; }
inline float Widen(uint16_t bits) { return Bf16ToFloat(bits); }

inline void Load8(const float* source, F32x4& low, F32x4& high) {
  low = Load4(source);
  high = Load4(source + 4);
}

inline void Load8(const uint16_t* source, F32x4& low, F32x4& high) {
  using U16x8 = uint16_t __attribute__((vector_size(16)));
  const U16x8 zero = {};
  U16x8 bits;
  std::memcpy(&bits, source, sizeof(bits));
  low = reinterpret_cast<F32x4>(
      __builtin_shufflevector(zero, bits, 0, 8, 1, 9, 2, 10, 3, 11));
  high = reinterpret_cast<F32x4>(
      __builtin_shufflevector(zero, bits, 4, 12, 5, 13, 6, 14, 7, 15));
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
    for (int half = 0; half < 2; ++half) {
      F32x4 weights[2];
      Load8(w + i + 8 * half, weights[0], weights[1]);
      for (int n = 0; n < N; ++n) {
        for (int q = 0; q < 2; ++q) {
          sums[n][2 * half + q] +=
              Load4(x[n] + i + 8 * half + 4 * q) * weights[q];
        }
      }
    }
  }
  // A copy takes the rest: only constant indices leave `sums` in registers.
  for (int n = 0; n < N; ++n) {
    F32x4 partial[4];
    for (int q = 0; q < 4; ++q) partial[q] = sums[n][q];
    for (size_t p = 0; i + p < size; ++p) {
      partial[p / 4][p % 4] += x[n][i + p] * Widen(w[i + p]);
    }
    out[n] = SumTree(partial);
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
      for (int half = 0; half < 2; ++half) {
        F32x4 weights[2];
        Load8(w + t * stride + c + 8 * half, weights[0], weights[1]);
        for (int n = 0; n < N; ++n) {
          for (int q = 0; q < 2; ++q) {
            sums[n][2 * half + q] += weights[q] * scales[n][t];
          }
        }
      }
    }
    for (int n = 0; n < N; ++n) {
      for (int q = 0; q < 4; ++q) {
        float* total = out[n] + c + 4 * q;
        Store4(Load4(total) * old_factor[n] + sums[n][q] * new_factor[n],
               total);
      }
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
