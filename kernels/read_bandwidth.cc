// SPDX-License-Identifier: Apache-2.0
#include "kernels/read_bandwidth.h"

#include "kernels/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/read_bandwidth.cc"
#include "hwy/foreach_target.h"  // Compiles this file once per target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ringfleet::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 1 KB: 17 to 20 GB/s by a core of Granite Rapids, where 8 KB give 15.6, and
// the processor alone 15.
constexpr size_t kWordsAhead = 128;

// Four independent sums: the loads of several cache lines are under way at any
// time, whatever the latency of an addition.
template <bool kAsk>
uint64_t Sum(const uint64_t* HWY_RESTRICT words, size_t count) {
  const hn::ScalableTag<uint64_t> d;
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  auto sum2 = hn::Zero(d);
  auto sum3 = hn::Zero(d);
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    sum0 = hn::Add(sum0, hn::LoadU(d, words + i));
    sum1 = hn::Add(sum1, hn::LoadU(d, words + i + lanes));
    sum2 = hn::Add(sum2, hn::LoadU(d, words + i + 2 * lanes));
    sum3 = hn::Add(sum3, hn::LoadU(d, words + i + 3 * lanes));
    if (kAsk) {
      for (size_t line = 0; line < 4 * lanes; line += 8) {
        __builtin_prefetch(words + i + kWordsAhead + line, 0, 2);
      }
    }
  }
  const auto all = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  // GCC's reduction of AVX-512 adds signed numbers, which may not overflow.
  HWY_ALIGN uint64_t parts[hn::MaxLanes(d)];
  hn::Store(all, d, parts);
  uint64_t sum = 0;
  for (size_t lane = 0; lane < lanes; ++lane) sum += parts[lane];
  for (; i < count; ++i) sum += words[i];
  return sum;
}

uint64_t SumWords(const uint64_t* words, size_t count) {
  return BestLinesAhead() == LinesAhead::kIntoLevel2 ? Sum<true>(words, count)
                                                     : Sum<false>(words, count);
}

}  // namespace ringfleet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE  // The dispatch table is built once, outside the per-target code.
namespace ringfleet::kernels {

HWY_EXPORT(SumWords);

uint64_t SumWords(const uint64_t* words, size_t count) {
  return HWY_DYNAMIC_DISPATCH(SumWords)(words, count);
}

}  // namespace ringfleet::kernels
#endif
