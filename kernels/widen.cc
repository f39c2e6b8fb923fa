// SPDX-License-Identifier: Apache-2.0
#include "kernels/widen.h"

#include <cmath>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/widen.cc"
#include "hwy/foreach_target.h"  // Compiles this file once per target.
#include "hwy/highway.h"
#include "kernels/f8_e4m3-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ringfleet::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<D>;

hn::Vec<D> LoadF8E4M3(const uint8_t* codes) {
  const auto value = f8::Load(codes);
  return hn::IfThenElse(hn::Gt(hn::Abs(value), hn::Set(D(), f8::kLargest)),
                        hn::NaN(D()), value);
}

hn::Vec<D> LoadBf16(const uint16_t* bits) {
  const DU du;
  return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(
                              du, hn::LoadU(hn::Rebind<uint16_t, D>(), bits))));
}

// `load(i)` gives elements [i, i + lanes). Returns how many are done, whole
// vectors; 0 also when one of them is beyond the limit.
template <typename Load>
size_t WidenVectors(size_t count, float scale, float limit,
                    float* HWY_RESTRICT destination, const Load& load) {
  const D d;
  const auto scales = hn::Set(d, scale);
  const auto limits = hn::Set(d, limit);
  auto good = hn::Eq(limits, limits);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto value = hn::Mul(load(i), scales);
    good = hn::And(good, hn::Le(hn::Abs(value), limits));
    hn::StoreU(value, d, destination + i);
  }
  return hn::AllTrue(d, good) ? i : 0;
}

size_t WidenF8E4M3(const uint8_t* codes, size_t count, float scale, float limit,
                   float* destination) {
  return WidenVectors(count, scale, limit, destination,
                      [codes](size_t i) { return LoadF8E4M3(codes + i); });
}

size_t WidenBf16(const uint8_t* bytes, size_t count, float scale, float limit,
                 float* destination) {
  return WidenVectors(count, scale, limit, destination, [bytes](size_t i) {
    return LoadBf16(reinterpret_cast<const uint16_t*>(bytes) + i);
  });
}

}  // namespace ringfleet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringfleet::kernels {

HWY_EXPORT(WidenF8E4M3);
HWY_EXPORT(WidenBf16);

bool WidenScaled(Dtype dtype, const void* source, size_t count, float scale,
                 float limit, float* destination) {
  const auto* bytes = static_cast<const uint8_t*>(source);
  size_t done = 0;
  if (dtype == Dtype::kF8E4M3) {
    done = HWY_DYNAMIC_DISPATCH(WidenF8E4M3)(bytes, count, scale, limit,
                                             destination);
  } else if (dtype == Dtype::kBf16) {
    done = HWY_DYNAMIC_DISPATCH(WidenBf16)(bytes, count, scale, limit,
                                           destination);
  }
  ToFloat(dtype, bytes + done * DtypeBytes(dtype), count - done,
          destination + done);
  bool good = true;
  for (size_t i = done; i < count; ++i) {
    destination[i] *= scale;
    good &= std::abs(destination[i]) <= limit;
  }
  return good;
}

}  // namespace ringfleet::kernels
#endif  // HWY_ONCE
