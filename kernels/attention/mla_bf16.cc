// SPDX-License-Identifier: Apache-2.0
// The operations of mla_block.h on AVX-512 with its bfloat16 dot product, which
// adds the products of a pair of bfloat16 numbers to a float32 sum. Contraction
// therefore goes over pairs: of neighbours in a key, of neighbouring positions
// in a column of values.
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/base.h"
#include "kernels/attention/mla_bf16_block.h"
#include "kernels/attention/mla_block.h"
#include "kernels/unroll.h"

#if defined(__x86_64__)

#ifndef __clang__
// GCC 12 finds its own intrinsics' undefined vectors uninitialised.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")
namespace ringfleet::kernels {
namespace {

struct Arithmetic {
  using Vector = __m512;
  using Columns = __m512bh;  // Pairs.
  using Row = __m512bh;

  // Six rows of four vectors take 24 of 32 registers; narrower products take
  // more rows, because a sum can be added to only every sixth cycle.
  static constexpr size_t kMaxVectors = 4;
  static constexpr size_t TileRows(size_t vectors) {
    return vectors <= 2 ? 12 : 6;
  }
  static constexpr bool kAsksForResults = true;

  static constexpr size_t Lanes() { return kVectorLanes; }
  static HWY_INLINE Vector Zero() { return _mm512_setzero_ps(); }
  static HWY_INLINE Vector Set(float value) { return _mm512_set1_ps(value); }
  static HWY_INLINE Vector Load(const float* from) {
    return _mm512_loadu_ps(from);
  }
  static HWY_INLINE void Store(Vector value, float* to) {
    _mm512_storeu_ps(to, value);
  }
  static HWY_INLINE Vector Mul(Vector a, Vector b) {
    return _mm512_mul_ps(a, b);
  }
  static HWY_INLINE Row LoadRow(const char* a) {
    int32_t pair;
    std::memcpy(&pair, a, kPairBytes);
    return (__m512bh)_mm512_set1_epi32(pair);
  }
  static HWY_INLINE Columns LoadColumns(const char* b) {
    return (__m512bh)_mm512_loadu_si512(b);
  }
  static HWY_INLINE Vector MulAdd(Vector sum, Row row, Columns columns) {
    return _mm512_dpbf16_ps(sum, row, columns);
  }
};

#include "kernels/attention/mla_product-inl.h"

void Attend(const MlaBlock& block) {
  const size_t padded = PaddedLanes(block.lanes);
  const size_t tile_rows = Arithmetic::TileRows(padded / kVectorLanes);
  const size_t panels = (block.value_dim + kMaxLanes - 1) / kMaxLanes;
  MlaPrefetcher prefetcher(
      block, 1 + block.positions / tile_rows + panels * (block.lanes / 6));
  Multiply({.a = static_cast<const char*>(block.keys),
            .a_row = block.key_stride_bytes,
            .a_step = kPairBytes,
            .b = static_cast<const char*>(block.queries),
            .b_step = padded * kPairBytes,
            .steps = (block.key_dim + 1) / 2,
            .c = block.scores,
            .c_row = padded,
            .prefetcher = &prefetcher},
           block.positions, padded);

  float old_factor[kMaxLanes];
  float new_factor[kMaxLanes];
  SoftmaxBf16(block, old_factor, new_factor);

  const size_t panel_bytes =
      (block.packed_positions + 1) / 2 * kMaxLanes * kPairBytes;
  const auto* panel = static_cast<const char*>(block.values);
  for (size_t column = 0; column < block.value_dim; column += kMaxLanes) {
    const size_t width = std::min(block.value_dim - column, kMaxLanes);
    const Product product = {.a = static_cast<const char*>(block.probabilities),
                             .a_row = kPairBytes,
                             .a_step = padded * kPairBytes,
                             .b = panel,
                             .b_step = kMaxLanes * kPairBytes,
                             .steps = (block.positions + 1) / 2,
                             .c = block.out + column,
                             .c_row = block.out_stride,
                             .old_factor = block.first ? nullptr : old_factor,
                             .new_factor = block.last ? new_factor : nullptr,
                             .prefetcher = &prefetcher};
    if (width % kVectorLanes == 0) {
      Multiply(product, block.lanes, width);
    } else {
      MultiplyNarrow(product, block.lanes, width);
    }
    panel += panel_bytes;
  }
}

}  // namespace

const MlaKernels& MlaKernelsBf16() {
  static const MlaKernels kernels = [] {
    MlaKernels all = kMlaBf16Rows;
    all.attend = &Attend;
    return all;
  }();
  return kernels;
}

}  // namespace ringfleet::kernels
HWY_POP_ATTRIBUTES

#endif  // defined(__x86_64__)
