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

// c[row][column] = sum over steps of a(row, step) . b[step][column], pairs
// multiplied with pairs, on top of old_factor[row] * c[row][column] and times
// new_factor[row], where there are factors.
struct Product {
  const char* a = nullptr;  // Pair `step` of `row` at row * a_row + step *
  size_t a_row = 0;         // a_step.
  size_t a_step = 0;
  const char* b = nullptr;
  size_t b_step = 0;
  size_t steps = 0;
  float* c = nullptr;
  size_t c_row = 0;
  const float* old_factor = nullptr;
  const float* new_factor = nullptr;
  MlaPrefetcher* prefetcher = nullptr;

  void SkipRows(size_t rows) {
    a += rows * a_row;
    c += rows * c_row;
    if (old_factor != nullptr) old_factor += rows;
    if (new_factor != nullptr) new_factor += rows;
  }
};

template <int kRows, int kVectors>
void MultiplyTile(const Product& product) {
  __m512 sums[kRows][kVectors];
  RF_UNROLL
  for (int r = 0; r < kRows; ++r) {
    RF_UNROLL
    for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_setzero_ps();
  }
  if (product.old_factor != nullptr) {
    RF_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m512 factor = _mm512_set1_ps(product.old_factor[r]);
      const float* c = product.c + r * product.c_row;
      RF_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] =
            _mm512_mul_ps(_mm512_loadu_ps(c + v * kVectorLanes), factor);
      }
    }
  }
  if (product.old_factor == nullptr) {
    // Results that are not read before they are written wait for no memory.
    for (int r = 0; r < kRows; ++r) {
      const float* c = product.c + r * product.c_row;
      for (int v = 0; v < kVectors; ++v) {
        _mm_prefetch(c + v * kVectorLanes, _MM_HINT_T0);
      }
    }
  }
  const char* a = product.a;
  const char* b = product.b;
  for (size_t step = 0; step < product.steps; ++step) {
    __m512bh columns[kVectors];
    RF_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      columns[v] = (__m512bh)_mm512_loadu_si512(b + v * kVectorBytes);
    }
    RF_UNROLL
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      std::memcpy(&pair, a + r * product.a_row, kPairBytes);
      const __m512bh row = (__m512bh)_mm512_set1_epi32(pair);
      RF_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = _mm512_dpbf16_ps(sums[r][v], row, columns[v]);
      }
    }
    a += product.a_step;
    b += product.b_step;
  }
  if (product.new_factor != nullptr) {
    RF_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m512 factor = _mm512_set1_ps(product.new_factor[r]);
      RF_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = _mm512_mul_ps(sums[r][v], factor);
      }
    }
  }
  RF_UNROLL
  for (int r = 0; r < kRows; ++r) {
    float* c = product.c + r * product.c_row;
    RF_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_ps(c + v * kVectorLanes, sums[r][v]);
    }
  }
}

// Six rows of four vectors take 24 of 32 registers; narrower products take
// more rows, because a sum can be added to only every sixth cycle.
template <int kVectors>
void MultiplyRows(Product product, size_t rows) {
  if constexpr (kVectors <= 2) {
    for (; rows >= 12; rows -= 12) {
      product.prefetcher->Tile();
      MultiplyTile<12, kVectors>(product);
      product.SkipRows(12);
    }
  }
  for (; rows >= 6; rows -= 6) {
    product.prefetcher->Tile();
    MultiplyTile<6, kVectors>(product);
    product.SkipRows(6);
  }
  switch (rows) {
    case 5:
      return MultiplyTile<5, kVectors>(product);
    case 4:
      return MultiplyTile<4, kVectors>(product);
    case 3:
      return MultiplyTile<3, kVectors>(product);
    case 2:
      return MultiplyTile<2, kVectors>(product);
    case 1:
      return MultiplyTile<1, kVectors>(product);
    default:
      return;
  }
}

// `columns` is a multiple of 16, at most 64.
void Multiply(const Product& product, size_t rows, size_t columns) {
  switch (columns / kVectorLanes) {
    case 4:
      return MultiplyRows<4>(product, rows);
    case 3:
      return MultiplyRows<3>(product, rows);
    case 2:
      return MultiplyRows<2>(product, rows);
    case 1:
      return MultiplyRows<1>(product, rows);
    default:
      return;
  }
}

// A panel of values that ends within a vector: its sums pass through memory
// that is as wide as the vectors.
void MultiplyNarrow(Product product, size_t lanes, size_t width) {
  float sums[kMaxLanes][kMaxLanes];
  float* out = product.c;
  for (size_t lane = 0; lane < lanes && product.old_factor != nullptr; ++lane) {
    std::memset(sums[lane], 0, sizeof(sums[lane]));
    std::memcpy(sums[lane], out + lane * product.c_row, width * sizeof(float));
  }
  const size_t out_row = product.c_row;
  product.c = sums[0];
  product.c_row = kMaxLanes;
  Multiply(product, lanes, PaddedLanes(width));
  for (size_t lane = 0; lane < lanes; ++lane) {
    std::memcpy(out + lane * out_row, sums[lane], width * sizeof(float));
  }
}

void Attend(const MlaBlock& block) {
  const size_t padded = PaddedLanes(block.lanes);
  const size_t tile_rows = padded <= 2 * kVectorLanes ? 12 : 6;
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
    const Product product = {.a = static_cast<const char*>(block.weights),
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
