// SPDX-License-Identifier: Apache-2.0
// Each block of data is cut in two: a first part, which is folded
// (crc32c_polynomial.h), and three runs, which are summed side by side because
// the instruction takes three cycles. The checksum of the whole is that of the
// first parts, with zeros for the runs, plus that of what came before and of
// the runs, with zeros for the first parts; neither sum waits for the other.
#include "cluster/wire/crc32c_mix.h"

#include <immintrin.h>

#include <cstring>

#include "cluster/wire/crc32c_polynomial.h"
#include "cluster/wire/crc32c_zeros.h"
#include "kernels/check.h"
#include "kernels/unroll.h"

#define RF_MIX_TARGET __attribute__((target("avx2,pclmul,vpclmulqdq")))

namespace ringfleet::cluster {
namespace {

constexpr size_t kMixLineBytes = 64;
constexpr size_t kMixVectorBytes = 32;
constexpr size_t kMixWordBytes = 8;
constexpr int kMixSums = 4;
constexpr int kMixRuns = 3;
constexpr size_t kMixStepBytes = kMixSums * kMixVectorBytes;
constexpr size_t kMixRunBytes = 256;
constexpr size_t kMixRunsBytes = kMixRuns * kMixRunBytes;
constexpr size_t kMixFoldedBytes = kCrcMixBytes - kMixRunsBytes;
constexpr int kMixSteps = kMixFoldedBytes / kMixStepBytes;
// Beside each vector.
constexpr int kMixWords = kMixRunBytes / kMixWordBytes / (kMixSteps * kMixSums);
static_assert(kMixSteps * kMixStepBytes == kMixFoldedBytes);
static_assert(kMixWords * kMixSteps * kMixSums * kMixWordBytes == kMixRunBytes);

// Lines are asked for so far ahead, one after the other: no processor foresees
// all four streams, and memory serves neighbours best. From memory Zen 3 sums
// 15 GB/s so, 11 in the streams' order; 32 from its caches.
constexpr size_t kMixAheadBytes = 3584;
constexpr size_t kMixAskBytes = kCrcMixBytes / kMixSteps;  // In each step.
static_assert(kMixAskBytes % kMixLineBytes == 0);

constexpr CrcShift kMixPastRun(kMixRunBytes);
constexpr CrcShift kMixPastTwoRuns(2 * kMixRunBytes);
constexpr CrcShift kMixPastRuns(kMixRunsBytes);
constexpr CrcShift kMixPastBlock(kCrcMixBytes);

// For a block that lies kDistance bytes before another.
template <size_t kDistance>
RF_MIX_TARGET inline __m256i FoldFactors() {
  constexpr auto kFirst =
      static_cast<int64_t>(CrcFoldFactor(8 * kDistance + 64));
  constexpr auto kSecond = static_cast<int64_t>(CrcFoldFactor(8 * kDistance));
  return _mm256_set_epi64x(kSecond, kFirst, kSecond, kFirst);
}

// `sum` moved by the distance of `factors`, plus `next`.
RF_MIX_TARGET inline __m256i Fold(__m256i sum, __m256i factors, __m256i next) {
  return _mm256_xor_si256(
      _mm256_xor_si256(_mm256_clmulepi64_epi128(sum, factors, 0x00),
                       _mm256_clmulepi64_epi128(sum, factors, 0x11)),
      next);
}

RF_MIX_TARGET inline __m256i LoadVector(const char* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

inline uint64_t LoadWord(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

}  // namespace

bool CanMixCrc32c() {
  static const bool can = __builtin_cpu_supports("avx2") &&
                          __builtin_cpu_supports("pclmul") &&
                          __builtin_cpu_supports("vpclmulqdq");
  return can;
}

RF_MIX_TARGET uint32_t MixCrc32c(uint32_t state, const char* data,
                                 size_t size) {
  RF_CHECK(size > 0 && size % kCrcMixBytes == 0);
  const __m256i past_step = FoldFactors<kMixStepBytes>();
  const __m256i past_runs = FoldFactors<kMixStepBytes + kMixRunsBytes>();
  // As if zeros had come before the first step; what did counts as a sum.
  __m256i folded[kMixSums];
  for (__m256i& sum : folded) sum = _mm256_setzero_si256();
  uint32_t summed = state;
  for (; size > 0; size -= kCrcMixBytes, data += kCrcMixBytes) {
    const char* const runs = data + kMixFoldedBytes;
    const bool ask = size >= kMixAheadBytes + kCrcMixBytes;
    uint64_t sums[kMixRuns] = {};
    for (int step = 0; step < kMixSteps; ++step) {
      const char* const vectors = data + step * kMixStepBytes;
      const char* const words = runs + step * (kMixRunBytes / kMixSteps);
      if (ask) {
        const char* const next = data + kMixAheadBytes + step * kMixAskBytes;
        for (size_t line = 0; line < kMixAskBytes; line += kMixLineBytes) {
          _mm_prefetch(next + line, _MM_HINT_T0);
        }
      }
      const __m256i factors = step == 0 ? past_runs : past_step;
      RF_UNROLL
      for (int i = 0; i < kMixSums; ++i) {
        folded[i] =
            Fold(folded[i], factors, LoadVector(vectors + i * kMixVectorBytes));
        RF_UNROLL
        for (int w = 0; w < kMixWords * kMixRuns; ++w) {
          const int run = w % kMixRuns;
          sums[run] = _mm_crc32_u64(
              sums[run],
              LoadWord(words + run * kMixRunBytes +
                       (i * kMixWords + w / kMixRuns) * kMixWordBytes));
        }
      }
    }
    summed = kMixPastBlock(summed) ^ kMixPastTwoRuns(sums[0]) ^
             kMixPastRun(sums[1]) ^ static_cast<uint32_t>(sums[2]);
  }
  const __m256i past_vector = FoldFactors<kMixVectorBytes>();
  __m256i sum = folded[0];
  for (int i = 1; i < kMixSums; ++i) sum = Fold(sum, past_vector, folded[i]);
  // What is left has the checksum of all first parts: 32 bytes behind a
  // register of zeros.
  char left[kMixVectorBytes];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(left), sum);
  uint64_t crc = 0;
  for (size_t at = 0; at < kMixVectorBytes; at += kMixWordBytes) {
    crc = _mm_crc32_u64(crc, LoadWord(left + at));
  }
  return kMixPastRuns(crc) ^ summed;
}

}  // namespace ringfleet::cluster
