// SPDX-License-Identifier: Apache-2.0
#include "kernels/logit_scan.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numbers>

#include "kernels/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/logit_scan.cc"
// The first header compiles this file once per target.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace ringfleet::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F64 = hn::ScalableTag<double>;
using U64 = hn::RebindToUnsigned<F64>;
using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using HalfF32 = hn::Rebind<float, F64>;  // As many as F64 has.

// Calls body(vector, index) for whole vectors of tag D, then once for the
// rest, which is filled up with `filler`.
template <class D, typename Body>
HWY_INLINE void ForEachVector(D d, const float* HWY_RESTRICT logits,
                              size_t count, float filler, const Body& body) {
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    body(hn::LoadU(d, logits + i), i);
  }
  if (i == count) return;
  HWY_ALIGN float rest[HWY_MAX_BYTES / sizeof(float)];
  std::fill_n(rest, hn::Lanes(d), filler);
  std::copy_n(logits + i, count - i, rest);
  body(hn::Load(d, rest), i);
}

float Highest(const float* logits, size_t count) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const F32 d;
  // Several, so that one comparison does not wait for the one before.
  constexpr size_t kSums = 4;
  hn::Vec<F32> max[kSums] = {hn::Set(d, kLowest), hn::Set(d, kLowest),
                             hn::Set(d, kLowest), hn::Set(d, kLowest)};
  const auto keep = [](hn::Vec<F32> v, hn::Vec<F32>& most) HWY_ATTR {
    most = hn::IfThenElse(hn::Gt(v, most), v, most);  // NaN is not greater.
  };
  const size_t step = kSums * hn::Lanes(d);
  size_t i = 0;
  for (; i + step <= count; i += step) {
    for (size_t s = 0; s < kSums; ++s) {
      keep(hn::LoadU(d, logits + i + s * hn::Lanes(d)), max[s]);
    }
  }
  ForEachVector(d, logits + i, count - i, kLowest,
                [&](hn::Vec<F32> v, size_t) HWY_ATTR { keep(v, max[0]); });
  for (size_t s = 1; s < kSums; ++s) keep(max[s], max[0]);
  return hn::GetLane(hn::MaxOfLanes(d, max[0]));
}

size_t Find(const float* logits, size_t count, float value) {
  const F32 d;
  const auto wanted = hn::Set(d, value);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto equal = hn::Eq(hn::LoadU(d, logits + i), wanted);
    const intptr_t first = hn::FindFirstTrue(d, equal);
    if (first >= 0) return i + static_cast<size_t>(first);
  }
  return std::find(logits + i, logits + count, value) - logits;
}

double SumExp(const float* logits, size_t count, float highest,
              float temperature) {
  const F64 d;
  const auto top = hn::Set(d, static_cast<double>(highest));
  const auto divisor = hn::Set(d, static_cast<double>(temperature));
  auto sum = hn::Zero(d);
  ForEachVector(
      HalfF32(), logits, count, std::numeric_limits<float>::quiet_NaN(),
      [&](hn::Vec<HalfF32> v, size_t) HWY_ATTR {
        const auto logit = hn::PromoteTo(d, v);
        const auto power = hn::Exp(d, hn::Div(hn::Sub(logit, top), divisor));
        const auto term =
            hn::IfThenElse(hn::Eq(logit, top), hn::Set(d, 1.0), power);
        // False for NaN.
        sum = hn::Add(sum, hn::IfThenElseZero(hn::Le(logit, top), term));
      });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Appends the indices of the lanes that `mask` has, the first being `first`.
template <class D, class M>
HWY_INLINE void Append(D d, M mask, size_t first, ScanHits* hits) {
  if (hn::AllFalse(d, mask)) return;
  uint8_t bits[8] = {};
  hn::StoreMaskBits(d, mask, bits);
  uint64_t rest;
  std::memcpy(&rest, bits, sizeof(rest));
  for (; rest != 0; rest &= rest - 1) {
    hits->index[hits->count++] =
        static_cast<uint32_t>(first + hwy::Num0BitsBelowLS1Bit_Nonzero64(rest));
  }
}

void Above(const float* logits, size_t count, float bound, ScanHits* hits) {
  const F32 d;
  const auto limit = hn::Set(d, bound);
  hits->count = 0;
  ForEachVector(d, logits, count, std::numeric_limits<float>::quiet_NaN(),
                [&](hn::Vec<F32> v, size_t i)
                    HWY_ATTR { Append(d, hn::Gt(v, limit), i, hits); });
}

// Word 1 of Philox4x32 for the ids in the low halves of `ids`. Only the low
// halves mean anything; MulEven reads no others.
HWY_INLINE hn::Vec<U64> PhiloxWord1(hn::Vec<U64> ids, const DrawKey& key) {
  const U64 d;
  const hn::Repartition<uint32_t, U64> d32;
  const auto multiply = [&](hn::Vec<U64> a, hn::Vec<U64> b) HWY_ATTR {
    return hn::MulEven(hn::BitCast(d32, a), hn::BitCast(d32, b));
  };
  const auto factor0 = hn::Set(d, uint64_t{0xD2511F53});
  const auto factor1 = hn::Set(d, uint64_t{0xCD9E8D57});
  auto c0 = ids;
  auto c1 = hn::Set(d, key.position & 0xffffffffu);
  auto c2 = hn::Set(d, key.position >> 32);
  auto c3 = hn::Set(d, uint64_t{key.sample});
  uint32_t key0 = static_cast<uint32_t>(key.seed);
  uint32_t key1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const auto product0 = multiply(factor0, c0);
    const auto product1 = multiply(factor1, c2);
    c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), c1),
                 hn::Set(d, uint64_t{key0}));
    c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), c3),
                 hn::Set(d, uint64_t{key1}));
    c1 = product1;
    c3 = product0;
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return c1;
}

void Contenders(const float* logits, size_t count, uint32_t first_id,
                const ContenderArgs& args, ScanHits* hits) {
  const F64 d;
  const U64 du;
  constexpr double kLn2 = std::numbers::ln2;
  const auto top = hn::Set(d, static_cast<double>(args.highest));
  const auto divisor = hn::Set(d, static_cast<double>(args.temperature));
  const auto needed = hn::Set(d, args.needed);
  const auto low_half = hn::Set(du, uint64_t{0xffffffff});
  // 2^52 as a double; its mantissa takes an integer of 32 bits as it is.
  const auto two_52 = hn::Set(du, uint64_t{0x4330000000000000});
  auto ids = hn::Add(hn::Iota(du, 0), hn::Set(du, uint64_t{first_id}));
  const auto more = hn::Set(du, uint64_t{hn::Lanes(d)});
  hits->count = 0;
  ForEachVector(
      HalfF32(), logits, count, std::numeric_limits<float>::quiet_NaN(),
      [&](hn::Vec<HalfF32> v, size_t i) HWY_ATTR {
        // u < (word + 1) / 2^32, so 1 - u > (2^32 - 1 - word) / 2^32 >=
        // 2^exponent / 2^32. A complement of 0 has the exponent -1023: no
        // bound.
        const auto complement =
            hn::AndNot(PhiloxWord1(ids, args.key), low_half);
        const auto value = hn::Sub(hn::BitCast(d, hn::Or(complement, two_52)),
                                   hn::BitCast(d, two_52));
        const auto biased = hn::ShiftRight<52>(hn::BitCast(du, value));
        const auto exponent = hn::Sub(
            hn::BitCast(d, hn::Or(biased, two_52)),
            hn::BitCast(d, hn::Set(du, uint64_t{0x4330000000000000} + 1023)));
        const auto noise =
            hn::Mul(hn::Sub(hn::Set(d, 32.0), exponent), hn::Set(d, kLn2));
        const auto below = hn::Div(hn::Sub(hn::PromoteTo(d, v), top), divisor);
        Append(d, hn::Ge(hn::Add(below, noise), needed), i, hits);
        ids = hn::Add(ids, more);
      });
}

}  // namespace ringfleet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringfleet::kernels {

HWY_EXPORT(Highest);
HWY_EXPORT(Find);
HWY_EXPORT(SumExp);
HWY_EXPORT(Above);
HWY_EXPORT(Contenders);

float HighestLogit(absl::Span<const float> logits) {
  return HWY_DYNAMIC_DISPATCH(Highest)(logits.data(), logits.size());
}

size_t FindLogit(absl::Span<const float> logits, float value) {
  return HWY_DYNAMIC_DISPATCH(Find)(logits.data(), logits.size(), value);
}

double SumExponentials(absl::Span<const float> logits, float highest,
                       float temperature) {
  return HWY_DYNAMIC_DISPATCH(SumExp)(logits.data(), logits.size(), highest,
                                      temperature);
}

void FindAbove(absl::Span<const float> logits, float bound, ScanHits* hits) {
  RF_CHECK(logits.size() <= kScanBlock);
  HWY_DYNAMIC_DISPATCH(Above)(logits.data(), logits.size(), bound, hits);
}

void FindContenders(absl::Span<const float> logits, uint32_t first_id,
                    const ContenderArgs& args, ScanHits* hits) {
  RF_CHECK(logits.size() <= kScanBlock);
  HWY_DYNAMIC_DISPATCH(Contenders)
  (logits.data(), logits.size(), first_id, args, hits);
}

}  // namespace ringfleet::kernels
#endif  // HWY_ONCE
