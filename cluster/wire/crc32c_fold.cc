// SPDX-License-Identifier: Apache-2.0
#include "cluster/wire/crc32c_fold.h"

#include <immintrin.h>

#include "cluster/wire/crc32c_polynomial.h"
#include "kernels/check.h"

#ifndef __clang__
// GCC 12 finds its own intrinsics' undefined vectors uninitialised.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define RF_FOLD_TARGET __attribute__((target("avx512f,avx512vl,vpclmulqdq")))

namespace ringfleet::cluster {
namespace {

constexpr size_t kVectorBytes = 64;
constexpr int kSums = kCrcFoldBytes / kVectorBytes;

// Multiplies by x^(8 * kDistance), adds `next`.
template <size_t kDistance>
RF_FOLD_TARGET inline __m512i Fold(__m512i sum, __m512i next) {
  constexpr uint64_t kFirst = CrcFoldFactor(8 * kDistance + 64);
  constexpr uint64_t kSecond = CrcFoldFactor(8 * kDistance);
  const __m512i factors = _mm512_set4_epi64(
      static_cast<int64_t>(kSecond), static_cast<int64_t>(kFirst),
      static_cast<int64_t>(kSecond), static_cast<int64_t>(kFirst));
  constexpr int kXorOfThree = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum, factors, 0x00),
                                   _mm512_clmulepi64_epi128(sum, factors, 0x11),
                                   next, kXorOfThree);
}

}  // namespace

bool CanFoldCrc32c() {
  static const bool can = __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("vpclmulqdq");
  return can;
}

RF_FOLD_TARGET uint32_t FoldCrc32c(uint32_t state, const char* data,
                                   size_t size) {
  RF_CHECK(size > 0 && size % kCrcFoldBytes == 0);
  __m512i sums[kSums];
  for (int i = 0; i < kSums; ++i) {
    sums[i] = _mm512_loadu_si512(data + i * kVectorBytes);
  }
  sums[0] = _mm512_xor_si512(
      sums[0],
      _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
  for (size_t at = kCrcFoldBytes; at < size; at += kCrcFoldBytes) {
    for (int i = 0; i < kSums; ++i) {
      sums[i] = Fold<kCrcFoldBytes>(
          sums[i], _mm512_loadu_si512(data + at + i * kVectorBytes));
    }
  }
  __m512i sum = sums[0];
  for (int i = 1; i < kSums; ++i) sum = Fold<kVectorBytes>(sum, sums[i]);
  // What is left has the checksum of the whole: 64 bytes behind a register of
  // zeros.
  alignas(64) uint64_t words[8];
  _mm512_store_si512(words, sum);
  uint64_t crc = 0;
  for (const uint64_t word : words) crc = _mm_crc32_u64(crc, word);
  return static_cast<uint32_t>(crc);
}

}  // namespace ringfleet::cluster
