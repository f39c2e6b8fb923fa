// SPDX-License-Identifier: Apache-2.0
// e4m3 codes as vectors of float32, once for each of Highway's targets.
#if defined(RINGFLEET_KERNELS_F8_E4M3_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RINGFLEET_KERNELS_F8_E4M3_INL_H_
#undef RINGFLEET_KERNELS_F8_E4M3_INL_H_
#else
#define RINGFLEET_KERNELS_F8_E4M3_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ringfleet::kernels::HWY_NAMESPACE {
namespace f8 {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;

// The largest finite magnitude.
inline constexpr float kLargest = 448.0f;

// As many codes as a vector has floats.
using Codes = hn::Vec<hn::Rebind<uint8_t, D>>;

// Widens codes exactly. A NaN's code becomes 480, which no other code does.
// Sign, four bits of exponent (bias 7) and three of mantissa move to where a
// half (bias 15) has them. Numbers without a leading one come out right, and
// float32's subnormal numbers, which are slow on some processors, do not occur.
HWY_INLINE hn::Vec<D> Widen(Codes codes) {
  const hn::Rebind<uint16_t, D> du;
  const hn::RebindToSigned<decltype(du)> di;
  const hn::Rebind<hwy::float16_t, D> dh;
  const auto bits = hn::ShiftLeft<8>(hn::PromoteTo(du, codes));
  const auto moved = hn::BitCast(du, hn::ShiftRight<1>(hn::BitCast(di, bits)));
  const auto half = hn::And(moved, hn::Set(du, 0xbfff));
  return hn::Mul(hn::PromoteTo(D(), hn::BitCast(dh, half)),
                 hn::Set(D(), 256.0f));
}

HWY_INLINE hn::Vec<D> Load(const uint8_t* codes) {
  return Widen(hn::LoadU(hn::Rebind<uint8_t, D>(), codes));
}

}  // namespace f8
}  // namespace ringfleet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // RINGFLEET_KERNELS_F8_E4M3_INL_H_
