// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/mla_bf16_block.h"

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/base.h"
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

constexpr size_t Min(size_t a, size_t b) { return a < b ? a : b; }

// The lowest `count` of 16 or 32 lanes; all of them if it is more.
__mmask16 First16(size_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << count) - 1);
}
__mmask32 First32(size_t count) {
  return count >= 32 ? 0xffffffffu : (1u << count) - 1;
}

// Writes rows[j][i] to out[i][j], i < count.
void StoreTransposed(const __m512i (&rows)[16], size_t count, char* out,
                     size_t stride_bytes) {
  __m512i pairs[16];
  RF_UNROLL
  for (int i = 0; i < 8; ++i) {
    pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
    pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
  }
  __m512i quads[16];  // quads[4 g + c]: column 4 b + c of rows 4 g .. 4 g + 3.
  RF_UNROLL
  for (int g = 0; g < 4; ++g) {
    RF_UNROLL
    for (int c = 0; c < 2; ++c) {
      const __m512i low = pairs[4 * g + c];
      const __m512i high = pairs[4 * g + 2 + c];
      quads[4 * g + 2 * c] = _mm512_unpacklo_epi64(low, high);
      quads[4 * g + 2 * c + 1] = _mm512_unpackhi_epi64(low, high);
    }
  }
  __m512i columns[16];
  RF_UNROLL
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(quads[c], quads[4 + c], 0x44);
    const __m512i high01 = _mm512_shuffle_i32x4(quads[c], quads[4 + c], 0xee);
    const __m512i low23 =
        _mm512_shuffle_i32x4(quads[8 + c], quads[12 + c], 0x44);
    const __m512i high23 =
        _mm512_shuffle_i32x4(quads[8 + c], quads[12 + c], 0xee);
    columns[c] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    columns[4 + c] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    columns[8 + c] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    columns[12 + c] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
  if (count == 16) {
    RF_UNROLL
    for (int i = 0; i < 16; ++i) {
      _mm512_storeu_si512(out + i * stride_bytes, columns[i]);
    }
  } else {
    for (size_t i = 0; i < count; ++i) {
      _mm512_storeu_si512(out + i * stride_bytes, columns[i]);
    }
  }
}

// 32 numbers, zeros from `count` on, rounded to nearest even.
__m512i LoadRounded(const float* numbers, size_t count) {
  const __m512 low = _mm512_maskz_loadu_ps(First16(count), numbers);
  const __m512 high =
      _mm512_maskz_loadu_ps(First16(count > 16 ? count - 16 : 0), numbers + 16);
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

// [pairs of numbers][padded lanes] pairs.
void PackQueries(const float* queries, size_t query_stride, size_t lanes,
                 size_t dim, void* packed) {
  const size_t padded = PaddedLanes(lanes);
  const size_t pairs = (dim + 1) / 2;
  for (size_t lane = 0; lane < padded; lane += kVectorLanes) {
    const float* query = queries + lane * query_stride;
    for (size_t pair = 0; pair < pairs; pair += kVectorLanes) {
      const size_t count = dim - 2 * pair;
      __m512i rows[kVectorLanes];
      if (lane + kVectorLanes <= lanes) {
        RF_UNROLL
        for (size_t i = 0; i < kVectorLanes; ++i) {
          const float* numbers = query + i * query_stride + 2 * pair;
          rows[i] = LoadRounded(numbers, count);
          // Two vectors of the next round but one: a row a lane is more streams
          // than the hardware follows.
          _mm_prefetch(numbers + 4 * kVectorLanes, _MM_HINT_T0);
          _mm_prefetch(numbers + 5 * kVectorLanes, _MM_HINT_T0);
        }
      } else {
        for (size_t i = 0; i < kVectorLanes; ++i) {
          rows[i] =
              lane + i < lanes
                  ? LoadRounded(query + i * query_stride + 2 * pair, count)
                  : _mm512_setzero_si512();
        }
      }
      StoreTransposed(
          rows, Min(pairs - pair, kVectorLanes),
          static_cast<char*>(packed) + (pair * padded + lane) * kPairBytes,
          padded * kPairBytes);
    }
  }
}

// [panels of 64 columns][pairs of positions][64] pairs, the columns padded to
// 32 with zeros, as is the last pair of an odd number of positions.
void PackValues(const void* rows, size_t stride_bytes, size_t count, size_t dim,
                void* packed) {
  alignas(kVectorBytes) uint16_t order[2][32];
  for (uint16_t i = 0; i < 32; ++i) {
    order[0][i] = static_cast<uint16_t>(i / 2 + 32 * (i % 2));
    order[1][i] = static_cast<uint16_t>(order[0][i] + 16);
  }
  const __m512i low = _mm512_load_si512(order[0]);
  const __m512i high = _mm512_load_si512(order[1]);
  const size_t pairs = (count + 1) / 2;
  const auto* source = static_cast<const char*>(rows);
  for (size_t pair = 0; pair < pairs; ++pair) {
    const char* even = source + 2 * pair * stride_bytes;
    const char* odd = even + stride_bytes;
    const bool alone = 2 * pair + 1 == count;
    for (size_t column = 0; column < dim; column += 32) {
      const __mmask32 mask = First32(dim - column);
      const __m512i a = _mm512_maskz_loadu_epi16(mask, even + 2 * column);
      const __m512i b = alone
                            ? _mm512_setzero_si512()
                            : _mm512_maskz_loadu_epi16(mask, odd + 2 * column);
      char* out = static_cast<char*>(packed) +
                  ((column / kMaxLanes * pairs + pair) * kMaxLanes +
                   column % kMaxLanes) *
                      kPairBytes;
      _mm512_storeu_si512(out, _mm512_permutex2var_epi16(a, low, b));
      _mm512_storeu_si512(out + kVectorBytes,
                          _mm512_permutex2var_epi16(a, high, b));
    }
  }
}

// 2^x for x <= 0 or NaN. Below 2^-126 zero: Intel's processors take a hundred
// times as long for a result that is no normal number.
__m512 Exp2(__m512 x) {
  const __mmask16 normal =
      _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  x = _mm512_maskz_mov_ps(normal, x);
  const __m512 n =
      _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(kExp2Coefficients[5]);
  RF_UNROLL
  for (int i = 4; i >= 0; --i) {
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(kExp2Coefficients[i]));
  }
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(normal, p, n);
}

// 16 scaled scores of a position, -infinity where a lane does not see it.
template <bool kMasked>
__m512 ScaledScores(const float* scores, __m512 scale, __m512i visible,
                    size_t position) {
  const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(scores), scale);
  if constexpr (!kMasked) return scaled;
  const __mmask16 seen = _mm512_cmpgt_epi32_mask(
      visible, _mm512_set1_epi32(static_cast<int>(position)));
  return _mm512_mask_blend_ps(seen, _mm512_set1_ps(-__builtin_inff()), scaled);
}

// Turns the scores of 16 lanes from `lane` on into probabilities [pairs of
// positions][padded lanes] pairs. Computes the factors of the earlier sums and,
// in the end, of all sums.
template <bool kMasked>
void SoftmaxLanes(const MlaBlock& block, size_t lane, float* old_factor,
                  float* new_factor) {
  const size_t padded = PaddedLanes(block.lanes);
  const float* scores = block.scores + lane;
  const __m512 scale = _mm512_set1_ps(block.score_scale);
  const __m512i visible = kMasked ? _mm512_loadu_si512(block.visible + lane)
                                  : _mm512_setzero_si512();
  const __m512 old_max = block.first ? _mm512_set1_ps(-__builtin_inff())
                                     : _mm512_loadu_ps(block.max + lane);
  __m512 max = old_max;
  for (size_t t = 0; t < block.positions; ++t) {
    max = _mm512_max_ps(
        max, ScaledScores<kMasked>(scores + t * padded, scale, visible, t));
  }
  const __m512 old = Exp2(_mm512_sub_ps(old_max, max));
  __m512 sum = block.first
                   ? _mm512_setzero_ps()
                   : _mm512_mul_ps(_mm512_loadu_ps(block.sum + lane), old);
  alignas(kVectorBytes) uint16_t order[32];
  for (uint16_t i = 0; i < 32; ++i) {
    order[i] = static_cast<uint16_t>(i / 2 + 16 * (i % 2));
  }
  const __m512i interleave = _mm512_load_si512(order);
  const auto weight = [&](size_t t) {
    return Exp2(_mm512_sub_ps(
        ScaledScores<kMasked>(scores + t * padded, scale, visible, t), max));
  };
  char* out = static_cast<char*>(block.probabilities) + lane * kPairBytes;
  for (size_t t = 0; t < block.positions; t += 2) {
    const __m512 even = weight(t);
    const __m512 odd =
        t + 1 < block.positions ? weight(t + 1) : _mm512_setzero_ps();
    sum = _mm512_add_ps(_mm512_add_ps(sum, even), odd);
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(interleave, both));
    out += padded * kPairBytes;
  }
  _mm512_storeu_ps(block.max + lane, max);
  _mm512_storeu_ps(block.sum + lane, sum);
  _mm512_storeu_ps(old_factor + lane, old);
  _mm512_storeu_ps(new_factor + lane, _mm512_div_ps(_mm512_set1_ps(1.0f), sum));
}

size_t Numbers(const LatentRowFormat& format) {
  return format.kv_lora_rank + format.rope_dim;
}

bool ReadsCache(const LatentRowFormat& format) {
  return format.dtype == Dtype::kBf16 && Numbers(format) % 2 == 0;
}

// codes * scale, rounded to nearest even.
void Dequantize(const char* codes, size_t count, float scale, uint16_t* out) {
  const __m512 factor = _mm512_set1_ps(scale);
  for (size_t i = 0; i < count; i += 32) {
    const __mmask32 mask = First32(count - i);
    const __m256i bytes = _mm256_maskz_loadu_epi8(mask, codes + i);
    const __m512 low =
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes)));
    const __m512 high = _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1)));
    _mm512_mask_storeu_epi16(
        out + i, mask,
        (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(high, factor),
                                     _mm512_mul_ps(low, factor)));
  }
}

// The number behind an odd number of numbers is zero: it ends the last pair.
void LoadRows(const LatentRowFormat& format, const char* rows, size_t count,
              void* out, size_t stride_bytes) {
  const size_t row_bytes = format.bytes();
  const size_t numbers = Numbers(format);
  for (size_t t = 0; t < count; ++t) {
    const char* row = rows + t * row_bytes;
    auto* converted =
        reinterpret_cast<uint16_t*>(static_cast<char*>(out) + t * stride_bytes);
    if (format.dtype == Dtype::kInt8) {
      float scales[2];
      std::memcpy(scales, row + numbers, sizeof(scales));
      Dequantize(row, format.kv_lora_rank, scales[0], converted);
      Dequantize(row + format.kv_lora_rank, format.rope_dim, scales[1],
                 converted + format.kv_lora_rank);
    } else {
      std::memcpy(converted, row, row_bytes);
    }
    if (numbers % 2 != 0) converted[numbers] = 0;
  }
}

void ConvertRows(const float* rows, size_t row_stride, size_t count, size_t dim,
                 size_t pad, void* out, size_t stride_bytes) {
  for (size_t t = 0; t < count; ++t) {
    const float* row = rows + t * row_stride;
    auto* converted =
        reinterpret_cast<uint16_t*>(static_cast<char*>(out) + t * stride_bytes);
    for (size_t i = 0; i < dim; i += 32) {
      _mm512_mask_storeu_epi16(converted + i, First32(dim - i),
                               LoadRounded(row + i, dim - i));
    }
    if (pad != 0) converted[dim] = 0;
  }
}

}  // namespace

const MlaKernels kMlaBf16Rows = {.element_bytes = sizeof(uint16_t),
                                 .pack_queries = &PackQueries,
                                 .pack_values = &PackValues,
                                 .reads_cache = &ReadsCache,
                                 .load_rows = &LoadRows,
                                 .convert_rows = &ConvertRows,
                                 .attend = nullptr};

void SoftmaxBf16(const MlaBlock& block, float* old_factor, float* new_factor) {
  for (size_t lane = 0; lane < PaddedLanes(block.lanes); lane += kVectorLanes) {
    if (block.visible != nullptr) {
      SoftmaxLanes<true>(block, lane, old_factor, new_factor);
    } else {
      SoftmaxLanes<false>(block, lane, old_factor, new_factor);
    }
  }
}

void TransposeProbabilitiesBf16(const MlaBlock& block, void* out) {
  const size_t padded = PaddedLanes(block.lanes);
  const size_t pairs = (block.positions + 1) / 2;
  const auto* probabilities = static_cast<const char*>(block.probabilities);
  constexpr size_t kRowBytes = kCacheBlockPositions / 2 * kPairBytes;
  for (size_t lane = 0; lane < padded; lane += kVectorLanes) {
    for (size_t pair = 0; pair < pairs; pair += kVectorLanes) {
      __m512i rows[kVectorLanes];
      for (size_t i = 0; i < kVectorLanes; ++i) {
        rows[i] =
            pair + i < pairs
                ? _mm512_loadu_si512(probabilities +
                                     ((pair + i) * padded + lane) * kPairBytes)
                : _mm512_setzero_si512();
      }
      StoreTransposed(
          rows, kVectorLanes,
          static_cast<char*>(out) + lane * kRowBytes + pair * kPairBytes,
          kRowBytes);
    }
  }
}

}  // namespace ringfleet::kernels
HWY_POP_ATTRIBUTES

#endif  // defined(__x86_64__)
