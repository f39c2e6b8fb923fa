// SPDX-License-Identifier: Apache-2.0
#include "kernels/reduce.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/check.h"
#include "kernels/dtype.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce.cc"
#include "hwy/foreach_target.h"  // Compiles this file once per target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ringfleet::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<uint16_t, F32>;
using I8 = hn::Rebind<int8_t, F32>;

// Elements of one wire type: Vector(i) widens those from i on, as many as a
// vector of floats has, Scalar(i) the one at i. Vectors of bytes are what may
// be loaded from, and stored to, any address.
struct F32Elements {
  hn::Vec<F32> Vector(size_t i) const {
    return hn::BitCast(F32(), hn::LoadU(hn::Repartition<uint8_t, F32>(),
                                        bytes + i * sizeof(float)));
  }
  float Scalar(size_t i) const {
    float value;
    std::memcpy(&value, bytes + i * sizeof(value), sizeof(value));
    return value;
  }
  const uint8_t* bytes;
};

struct Bf16Elements {
  hn::Vec<F32> Vector(size_t i) const {
    const auto bits = hn::BitCast(
        U16(), hn::LoadU(hn::Repartition<uint8_t, U16>(), bytes + i * 2));
    return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), bits)));
  }
  float Scalar(size_t i) const {
    uint16_t bits;
    std::memcpy(&bits, bytes + i * sizeof(bits), sizeof(bits));
    return Bf16ToFloat(bits);
  }
  const uint8_t* bytes;
};

struct Int8Elements {
  hn::Vec<F32> Vector(size_t i) const {
    const auto codes = hn::PromoteTo(I32(), hn::LoadU(I8(), bytes + i));
    return hn::Mul(hn::ConvertTo(F32(), codes), hn::Set(F32(), scale));
  }
  float Scalar(size_t i) const { return static_cast<float>(bytes[i]) * scale; }
  const int8_t* bytes;
  float scale;
};

template <class Elements>
void Decode(Elements elements, size_t count, float* HWY_RESTRICT out) {
  const F32 d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    hn::StoreU(elements.Vector(i), d, out + i);
  }
  for (; i < count; ++i) out[i] = elements.Scalar(i);
}

template <class Elements>
void Add(Elements elements, size_t count, const float* base, float* sum) {
  const F32 d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    hn::StoreU(hn::Add(hn::LoadU(d, base + i), elements.Vector(i)), d, sum + i);
  }
  for (; i < count; ++i) sum[i] = base[i] + elements.Scalar(i);
}

void AddF32(const char* bytes, size_t count, const float* base, float* sum) {
  Add(F32Elements{reinterpret_cast<const uint8_t*>(bytes)}, count, base, sum);
}

void DecodeBf16(const char* bytes, size_t count, float* out) {
  Decode(Bf16Elements{reinterpret_cast<const uint8_t*>(bytes)}, count, out);
}

void AddBf16(const char* bytes, size_t count, const float* base, float* sum) {
  Add(Bf16Elements{reinterpret_cast<const uint8_t*>(bytes)}, count, base, sum);
}

void EncodeBf16(const float* HWY_RESTRICT values, size_t count,
                char* HWY_RESTRICT bytes) {
  const F32 d;
  const U32 du;
  const I32 di;
  const hn::Repartition<uint8_t, U16> d8;
  auto* const out = reinterpret_cast<uint8_t*>(bytes);
  const auto infinity = hn::Set(di, 0x7f800000);
  const auto magnitude = hn::Set(di, 0x7fffffff);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto bits = hn::BitCast(du, hn::LoadU(d, values + i));
    const auto upper = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(upper, hn::Set(du, 1));
    const auto rounded =
        hn::ShiftRight<16>(hn::Add(bits, hn::Add(hn::Set(du, 0x7fff), odd)));
    const auto quiet = hn::Or(upper, hn::Set(du, 0x40));
    const auto is_nan =
        hn::Gt(hn::And(hn::BitCast(di, bits), magnitude), infinity);
    const auto result = hn::IfThenElse(is_nan, hn::BitCast(di, quiet),
                                       hn::BitCast(di, rounded));
    hn::StoreU(hn::BitCast(d8, hn::DemoteTo(U16(), result)), d8, out + 2 * i);
  }
  for (; i < count; ++i) {
    const uint16_t element = FloatToBf16(values[i]);
    std::memcpy(out + 2 * i, &element, sizeof(element));
  }
}

float EncodeInt8Group(const float* HWY_RESTRICT values, size_t count,
                      char* HWY_RESTRICT codes) {
  const F32 d;
  const I32 di;
  // Without their signs, floats order as their bits do, NaNs above infinity.
  const auto magnitude = hn::Set(di, 0x7fffffff);
  auto largest = hn::Zero(di);
  const size_t whole = count - count % hn::Lanes(d);
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    const auto bits = hn::BitCast(di, hn::LoadU(d, values + i));
    largest = hn::Max(largest, hn::And(bits, magnitude));
  }
  int32_t max_bits = hn::GetLane(hn::MaxOfLanes(di, largest));
  for (size_t i = whole; i < count; ++i) {
    const int32_t bits = std::bit_cast<int32_t>(values[i]) & 0x7fffffff;
    if (bits > max_bits) max_bits = bits;
  }

  constexpr int32_t kInfinity = 0x7f800000;
  constexpr float kQuietNan = std::bit_cast<float>(0x7fc00000);
  const float max = std::bit_cast<float>(max_bits);
  const float inverse = 127.0f / max;
  if (max_bits >= kInfinity || std::bit_cast<int32_t>(inverse) >= kInfinity) {
    if (count > 0) std::memset(codes, 0, count);
    return max_bits >= kInfinity ? kQuietNan : 0.0f;
  }
  // |value * inverse| <= 127 (1 + 2^-24)^2, which rounds to 127 at most: there
  // is nothing to clamp.
  auto* const out = reinterpret_cast<int8_t*>(codes);
  const auto factor = hn::Set(d, inverse);
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    const auto scaled = hn::Mul(hn::LoadU(d, values + i), factor);
    hn::StoreU(hn::DemoteTo(I8(), hn::NearestInt(scaled)), I8(), out + i);
  }
  const hn::CappedTag<float, 1> d1;
  for (size_t i = whole; i < count; ++i) {
    const auto scaled = hn::Set(d1, values[i] * inverse);
    out[i] = static_cast<int8_t>(hn::GetLane(hn::NearestInt(scaled)));
  }
  return max / 127.0f;
}

void DecodeInt8Group(const char* codes, size_t count, float scale, float* out) {
  Decode(Int8Elements{reinterpret_cast<const int8_t*>(codes), scale}, count,
         out);
}

void AddInt8Group(const char* codes, size_t count, float scale,
                  const float* base, float* sum) {
  Add(Int8Elements{reinterpret_cast<const int8_t*>(codes), scale}, count, base,
      sum);
}

}  // namespace ringfleet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE  // The dispatch tables are built once, outside the per-target
              // code.
namespace ringfleet::kernels {

HWY_EXPORT(AddF32);
HWY_EXPORT(EncodeBf16);
HWY_EXPORT(DecodeBf16);
HWY_EXPORT(AddBf16);
HWY_EXPORT(EncodeInt8Group);
HWY_EXPORT(DecodeInt8Group);
HWY_EXPORT(AddInt8Group);

void AddF32(const char* bytes, size_t count, const float* base, float* sum) {
  HWY_DYNAMIC_DISPATCH(AddF32)(bytes, count, base, sum);
}

void EncodeBf16(const float* values, size_t count, char* bytes) {
  HWY_DYNAMIC_DISPATCH(EncodeBf16)(values, count, bytes);
}

void DecodeBf16(const char* bytes, size_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeBf16)(bytes, count, out);
}

void AddBf16(const char* bytes, size_t count, const float* base, float* sum) {
  HWY_DYNAMIC_DISPATCH(AddBf16)(bytes, count, base, sum);
}

float EncodeInt8Group(const float* values, size_t count, char* codes) {
  RF_CHECK(count <= kInt8GroupElements);
  return HWY_DYNAMIC_DISPATCH(EncodeInt8Group)(values, count, codes);
}

void DecodeInt8Group(const char* codes, size_t count, float scale, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeInt8Group)(codes, count, scale, out);
}

void AddInt8Group(const char* codes, size_t count, float scale,
                  const float* base, float* sum) {
  HWY_DYNAMIC_DISPATCH(AddInt8Group)(codes, count, scale, base, sum);
}

}  // namespace ringfleet::kernels
#endif
