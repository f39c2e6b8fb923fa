// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/quantize_f8.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/dtype.h"
#include "kernels/products/quantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/products/quantize_f8.cc"
#include "hwy/foreach_target.h"  // Compiles this file once per target.
#include "hwy/highway.h"
#include "kernels/f8_e4m3-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ringfleet::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The greatest of a row's magnitudes, before and behind its scales.
class Magnitudes {
 public:
  Magnitudes() : stored_(hn::Zero(f8::D())), scaled_(stored_) {}

  // Magnitudes are ordered as their codes are, so all but the last of a block's
  // comparisons are those of bytes.
  void AddBlock(const uint8_t* HWY_RESTRICT codes, size_t count, float scale) {
    const hn::ScalableTag<uint8_t> d8;
    const hn::Half<decltype(d8)> half;
    const hn::Half<decltype(half)> quarter;  // As many as a vector's floats.
    const auto mask = hn::Set(d8, 0x7f);
    auto max = hn::Zero(d8);
    size_t i = 0;
    for (; i + hn::Lanes(d8) <= count; i += hn::Lanes(d8)) {
      max = hn::Max(max, hn::And(hn::LoadU(d8, codes + i), mask));
    }
    if (i < count) {
      HWY_ALIGN uint8_t rest[HWY_MAX_BYTES] = {};
      std::memcpy(rest, codes + i, count - i);
      max = hn::Max(max, hn::And(hn::Load(d8, rest), mask));
    }
    const auto halved =
        hn::Max(hn::LowerHalf(half, max), hn::UpperHalf(half, max));
    Add(f8::Widen(hn::Max(hn::LowerHalf(quarter, halved),
                          hn::UpperHalf(quarter, halved))),
        scale);
  }

  bool AnyNaN() const { return !(Largest(stored_) <= f8::kLargest); }
  // Infinite when a product is.
  float Scaled() const { return Largest(scaled_); }

 private:
  void Add(hn::Vec<f8::D> stored, float scale) {
    stored_ = hn::Max(stored_, stored);
    scaled_ = hn::Max(scaled_, hn::Mul(stored, hn::Set(f8::D(), scale)));
  }
  static float Largest(hn::Vec<f8::D> v) {
    return hn::GetLane(hn::MaxOfLanes(f8::D(), v));
  }
  hn::Vec<f8::D> stored_;
  hn::Vec<f8::D> scaled_;
};

void RoundF8(const uint8_t* HWY_RESTRICT values, size_t count, float scale,
             float factor, int8_t* HWY_RESTRICT codes) {
  const f8::D d;
  const hn::Rebind<uint8_t, f8::D> d8;
  const hn::RebindToUnsigned<f8::D> d32;
  const auto scales = hn::Set(d, scale);
  const auto factors = hn::Set(d, factor);
  // 1.5 * 2^23: a sum with it is rounded to an integer, to nearest even, whose
  // low byte is that of the sum.
  const auto round = hn::Set(d, 12582912.0f);
  auto* bytes = reinterpret_cast<uint8_t*>(codes);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto value = hn::Mul(hn::Mul(f8::Load(values + i), scales), factors);
    const auto sum = hn::BitCast(d32, hn::Add(value, round));
    hn::StoreU(hn::TruncateTo(d8, sum), d8, bytes + i);
  }
  for (; i < count; ++i) {
    const float value = F8E4M3ToFloat(values[i]) * scale;
    codes[i] = static_cast<int8_t>(std::nearbyint(value * factor));
  }
}

bool QuantizeF8(const CodeRow& row, int8_t* codes, float* scale) {
  Magnitudes magnitudes;
  ForEachBlock(row, [&](size_t first, size_t count, float block_scale) {
    magnitudes.AddBlock(row.codes + first, count, block_scale);
  });
  const float max = magnitudes.Scaled();
  if (magnitudes.AnyNaN() || !(max <= std::numeric_limits<float>::max())) {
    return false;
  }
  if (max < kSmallestQuantized) {
    if (row.count > 0) std::memset(codes, 0, row.count);
    *scale = 0;
    return true;
  }
  *scale = max / 127.0f;
  const float factor = 127.0f / max;
  ForEachBlock(row, [&](size_t first, size_t count, float block_scale) {
    RoundF8(row.codes + first, count, block_scale, factor, codes + first);
  });
  return true;
}

}  // namespace ringfleet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringfleet::kernels {

HWY_EXPORT(QuantizeF8);

bool QuantizeInt8(const CodeRow& row, int8_t* codes, float* scale) {
  return HWY_DYNAMIC_DISPATCH(QuantizeF8)(row, codes, scale);
}

}  // namespace ringfleet::kernels
#endif  // HWY_ONCE
