// SPDX-License-Identifier: Apache-2.0
#include "kernels/dtype.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/check.h"

namespace ringfleet::kernels {
namespace {

std::array<float, 256> MakeF8E4M3Table() {
  std::array<float, 256> table;
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15;
    const int mantissa = code & 7;
    float magnitude;
    if (exponent == 15 && mantissa == 7) {
      magnitude = std::numeric_limits<float>::quiet_NaN();
    } else if (exponent == 0) {
      magnitude = std::ldexp(static_cast<float>(mantissa), -9);
    } else {
      magnitude =
          std::ldexp(1.0f + static_cast<float>(mantissa) / 8.0f, exponent - 7);
    }
    table[code] = (code & 0x80) ? -magnitude : magnitude;
  }
  return table;
}

const std::array<float, 256>& F8E4M3Table() {
  static const std::array<float, 256> table = MakeF8E4M3Table();
  return table;
}

template <typename Integer>
void ConvertIntegers(const uint8_t* bytes, size_t count, float* destination) {
  for (size_t i = 0; i < count; ++i) {
    Integer value;
    std::memcpy(&value, bytes + i * sizeof(value), sizeof(value));
    destination[i] = static_cast<float>(value);
  }
}

}  // namespace

size_t DtypeBytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kInt64:
      return 8;
    case Dtype::kF32:
    case Dtype::kInt32:
      return 4;
    case Dtype::kBf16:
    case Dtype::kF16:
      return 2;
    case Dtype::kF8E4M3:
    case Dtype::kInt8:
    case Dtype::kF8E8M0:
      return 1;
  }
  RF_CHECK(false);
}

absl::string_view DtypeName(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return "f32";
    case Dtype::kBf16:
      return "bf16";
    case Dtype::kF16:
      return "f16";
    case Dtype::kF8E4M3:
      return "f8_e4m3";
    case Dtype::kInt8:
      return "int8";
    case Dtype::kF8E8M0:
      return "f8_e8m0";
    case Dtype::kInt32:
      return "int32";
    case Dtype::kInt64:
      return "int64";
  }
  RF_CHECK(false);
}

float F16ToFloat(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  float magnitude;
  if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else if (exponent == 31) {
    magnitude = mantissa == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
  } else {
    magnitude = std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  }
  return (bits & 0x8000) ? -magnitude : magnitude;
}

float F8E4M3ToFloat(uint8_t bits) { return F8E4M3Table()[bits]; }

float F8E8M0ToFloat(uint8_t bits) {
  return bits == 0xff ? std::numeric_limits<float>::quiet_NaN()
                      : std::ldexp(1.0f, bits - 127);
}

void ToFloat(Dtype dtype, const void* source, size_t count,
             float* destination) {
  const auto* bytes = static_cast<const uint8_t*>(source);
  switch (dtype) {
    case Dtype::kF32:
      std::memcpy(destination, source, count * sizeof(float));
      return;
    case Dtype::kBf16:
    case Dtype::kF16:
      for (size_t i = 0; i < count; ++i) {
        uint16_t bits;
        std::memcpy(&bits, bytes + 2 * i, sizeof(bits));
        destination[i] =
            dtype == Dtype::kBf16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
      }
      return;
    case Dtype::kF8E4M3: {
      const std::array<float, 256>& table = F8E4M3Table();
      for (size_t i = 0; i < count; ++i) destination[i] = table[bytes[i]];
      return;
    }
    case Dtype::kInt8:
      for (size_t i = 0; i < count; ++i) {
        destination[i] = static_cast<float>(static_cast<int8_t>(bytes[i]));
      }
      return;
    case Dtype::kF8E8M0:
      for (size_t i = 0; i < count; ++i)
        destination[i] = F8E8M0ToFloat(bytes[i]);
      return;
    case Dtype::kInt32:
      return ConvertIntegers<int32_t>(bytes, count, destination);
    case Dtype::kInt64:
      return ConvertIntegers<int64_t>(bytes, count, destination);
  }
}

}  // namespace ringfleet::kernels
