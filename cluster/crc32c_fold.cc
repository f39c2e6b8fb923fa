// SPDX-License-Identifier: Apache-2.0
// Folding as in Gopal et al., "Fast CRC Computation for Generic Polynomials
// Using PCLMULQDQ Instruction", Intel, 2009: of two blocks that lie D bits
// apart, the first may be replaced by its product with x^D, added to the
// second. A block's two halves of 64 bits are multiplied by x^(D + 64) and x^D
// modulo P, each of degree 31 at most, so that the sum fits a block again.
#include "cluster/crc32c_fold.h"

#include <immintrin.h>

#include "cluster/crc32c_polynomial.h"
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

// Bit i of a half stands for x^(63 - i), so the instruction's product, in which
// bit i would have to stand for x^(127 - i), is x times what it should be.
constexpr uint64_t FoldFactor(uint64_t bits) {
  return uint64_t{CrcPowerOfX(bits - 1)} << 32;
}

// Multiplies by x^(8 * kDistance), adds `next`. The half that comes first in
// memory is the higher one.
template <size_t kDistance>
RF_FOLD_TARGET inline __m512i Fold(__m512i sum, __m512i next) {
  constexpr uint64_t kFirst = FoldFactor(8 * kDistance + 64);
  constexpr uint64_t kSecond = FoldFactor(8 * kDistance);
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
