// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/latent_cache.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/elementwise.h"

namespace ringfleet::kernels {
namespace {

constexpr size_t kScales = 2;  // The latent's, the rope key's.

// Codes of one part of a row; returns their scale.
float Quantize(const float* values, size_t count, char* codes) {
  float max = 0;
  bool finite = true;
  for (size_t i = 0; i < count; ++i) {
    finite = finite && std::isfinite(values[i]);
    max = std::abs(values[i]) > max ? std::abs(values[i]) : max;
  }
  const float inverse = 127.0f / max;
  if (!finite || !std::isfinite(inverse)) {
    if (count > 0) std::memset(codes, 0, count);
    return finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  // |value * inverse| <= 127 (1 + 2^-24)^2 rounds to 127 at most.
  for (size_t i = 0; i < count; ++i) {
    codes[i] = static_cast<char>(
        static_cast<int8_t>(std::nearbyint(values[i] * inverse)));
  }
  return max / 127.0f;
}

void Dequantize(const char* codes, size_t count, float scale,
                float* __restrict out) {
  const auto* integers = reinterpret_cast<const int8_t*>(codes);
  for (size_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(integers[i]) * scale;
  }
}

}  // namespace

size_t LatentRowFormat::bytes() const {
  return numbers() * DtypeBytes(dtype) +
         (dtype == Dtype::kInt8 ? kScales * sizeof(float) : 0);
}

void StoreLatentRow(const LatentRowFormat& format, const float* row,
                    char* destination) {
  const size_t rank = format.kv_lora_rank;
  if (format.dtype == Dtype::kBf16) {
    FloatToBf16(row, format.numbers(),
                reinterpret_cast<uint16_t*>(destination));
  } else if (format.dtype == Dtype::kInt8) {
    const float scales[kScales] = {
        Quantize(row, rank, destination),
        Quantize(row + rank, format.rope_dim, destination + rank)};
    std::memcpy(destination + format.numbers(), scales, sizeof(scales));
  } else {
    std::memcpy(destination, row, format.numbers() * sizeof(float));
  }
}

void LoadLatentRows(const LatentRowFormat& format, const char* rows,
                    size_t count, float* out, size_t row_stride) {
  const size_t rank = format.kv_lora_rank;
  for (size_t t = 0; t < count; ++t) {
    const char* row = rows + t * format.bytes();
    float* widened = out + t * row_stride;
    if (format.dtype == Dtype::kBf16) {
      Bf16ToFloat(reinterpret_cast<const uint16_t*>(row), format.numbers(),
                  widened);
    } else if (format.dtype == Dtype::kInt8) {
      float scales[kScales];
      std::memcpy(scales, row + format.numbers(), sizeof(scales));
      Dequantize(row, rank, scales[0], widened);
      Dequantize(row + rank, format.rope_dim, scales[1], widened + rank);
    } else {
      std::memcpy(widened, row, format.numbers() * sizeof(float));
    }
  }
}

}  // namespace ringfleet::kernels
