// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/check.h"
#include "kernels/dtype.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/products/quantize.cc"
#include "hwy/foreach_target.h"  // Compiles this file once per target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ringfleet::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The largest |x|, as the bits of a float: these order as the numbers do, and
// NaN lies above all of them.
uint32_t MaxMagnitudeBits(const float* HWY_RESTRICT x, size_t count) {
  const hn::ScalableTag<int32_t> d;
  const auto mask = hn::Set(d, 0x7fffffff);
  const auto* bits = reinterpret_cast<const int32_t*>(x);
  auto max = hn::Zero(d);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    max = hn::Max(max, hn::And(hn::LoadU(d, bits + i), mask));
  }
  uint32_t result = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(d, max)));
  for (; i < count; ++i) {
    result = std::max(result, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  }
  return result;
}

void RoundScaled(const float* HWY_RESTRICT x, size_t count, float factor,
                 int8_t* HWY_RESTRICT codes) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const auto factors = hn::Set(d, factor);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto rounded = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), factors));
    hn::StoreU(hn::DemoteTo(d8, rounded), d8, codes + i);
  }
  for (; i < count; ++i) {
    codes[i] = static_cast<int8_t>(std::nearbyint(x[i] * factor));
  }
}

// 4, 8 or 16 lanes, all of which divide kInt4Group.
using D = hn::CappedTag<float, 16>;

// Returns the factor of group `x` before rounding; 0 if its codes are 0.
float Factor(const float* HWY_RESTRICT x, float* scale) {
  const hn::RebindToSigned<D> d;
  const auto mask = hn::Set(d, 0x7fffffff);
  const auto* bits = reinterpret_cast<const int32_t*>(x);
  auto largest = hn::Zero(d);
  for (size_t i = 0; i < kActivationGroup; i += hn::Lanes(d)) {
    largest = hn::Max(largest, hn::And(hn::LoadU(d, bits + i), mask));
  }
  const float max =
      std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(d, largest)));
  if (max >= kSmallestQuantized && max <= std::numeric_limits<float>::max()) {
    *scale = max / 127.0f;
    return 127.0f / max;
  }
  *scale =
      max < kSmallestQuantized ? 0 : std::numeric_limits<float>::quiet_NaN();
  return 0;
}

// x [groups, kActivationGroup], whole groups.
void QuantizeWholeGroups(const float* HWY_RESTRICT x, size_t groups,
                         int8_t* HWY_RESTRICT codes, float* HWY_RESTRICT scales,
                         int32_t* HWY_RESTRICT sums) {
  const D d;
  const hn::RebindToSigned<D> d32;
  const hn::Rebind<int8_t, D> d8;
  for (size_t g = 0; g < groups; ++g, x += kActivationGroup) {
    const float factor = Factor(x, &scales[g]);
    if (factor == 0) {
      std::memset(codes, 0, kActivationGroup);
      for (size_t i = 0; i < kActivationGroup; i += kInt4Group) *sums++ = 0;
      codes += kActivationGroup;
      continue;
    }
    const auto factors = hn::Set(d, factor);
    for (size_t first = 0; first < kActivationGroup; first += kInt4Group) {
      auto sum = hn::Zero(d32);
      for (size_t i = first; i < first + kInt4Group; i += hn::Lanes(d)) {
        const auto rounded =
            hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), factors));
        sum = hn::Add(sum, rounded);
        hn::StoreU(hn::DemoteTo(d8, rounded), d8, codes + i);
      }
      *sums++ = hn::GetLane(hn::SumOfLanes(d32, sum));
    }
    codes += kActivationGroup;
  }
}

}  // namespace ringfleet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringfleet::kernels {
namespace {

HWY_EXPORT(MaxMagnitudeBits);
HWY_EXPORT(RoundScaled);
HWY_EXPORT(QuantizeWholeGroups);

// Divisors of the largest magnitude that QuantizeInt4 tries. -8 lets the range
// reach its one code more on the side of the largest value; above 8 small
// values gain what the largest loses.
constexpr float kInt4Divisors[] = {-9.5f, -9.0f, -8.5f, -8.0f, -7.6f, -7.2f,
                                   6.6f,  7.0f,  7.5f,  8.0f,  8.6f};

}  // namespace

float QuantizeInt8(const float* x, size_t count, int8_t* codes) {
  const float max =
      std::bit_cast<float>(HWY_DYNAMIC_DISPATCH(MaxMagnitudeBits)(x, count));
  if (!(max >= kSmallestQuantized) || std::isinf(max)) {
    if (count > 0) std::memset(codes, 0, count);
    return max < kSmallestQuantized ? 0
                                    : std::numeric_limits<float>::quiet_NaN();
  }
  HWY_DYNAMIC_DISPATCH(RoundScaled)(x, count, 127.0f / max, codes);
  return max / 127.0f;
}

void QuantizeGroups(const float* x, size_t count, int8_t* codes, float* scales,
                    int32_t* sums) {
  const size_t whole = count / kActivationGroup;
  HWY_DYNAMIC_DISPATCH(QuantizeWholeGroups)(x, whole, codes, scales, sums);
  const size_t rest = count % kActivationGroup;
  if (rest == 0) return;
  float last[kActivationGroup] = {};
  std::copy_n(x + count - rest, rest, last);
  HWY_DYNAMIC_DISPATCH(QuantizeWholeGroups)
  (last, 1, codes + whole * kActivationGroup, scales + whole,
   sums + whole * (kActivationGroup / kInt4Group));
}

float QuantizeInt4(const float* w, size_t count, uint8_t* codes) {
  RF_CHECK(count <= kInt4Group);
  float extreme = 0;
  for (size_t i = 0; i < count; ++i) {
    if (std::abs(w[i]) > std::abs(extreme)) extreme = w[i];
  }
  std::memset(codes, 8, count);
  if (std::abs(extreme) < kSmallestQuantized) return 0;
  float best_scale = 0;
  float best_error = std::numeric_limits<float>::max();
  for (const float divisor : kInt4Divisors) {
    const float scale = RoundToBf16(extreme / divisor);
    const float inverse = 1.0f / scale;
    uint8_t candidate[kInt4Group];
    float error = 0;
    for (size_t i = 0; i < count; ++i) {
      const float code =
          std::clamp(std::nearbyint(w[i] * inverse), -8.0f, 7.0f);
      const float difference = w[i] - code * scale;
      error += difference * difference;
      candidate[i] = static_cast<uint8_t>(static_cast<int>(code) + 8);
    }
    if (error < best_error) {
      best_error = error;
      best_scale = scale;
      std::memcpy(codes, candidate, count);
    }
  }
  return best_scale;
}

}  // namespace ringfleet::kernels
#endif  // HWY_ONCE
