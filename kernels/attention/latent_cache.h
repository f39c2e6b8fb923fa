// SPDX-License-Identifier: Apache-2.0
// Rows of the latent cache in memory. A row is (latent after its norm, rope key
// after rotation). The cache of a sequence is a list of blocks of
// kCacheBlockPositions rows.
//
//   kF32, kBf16: kv_lora_rank + rope_dim elements
//   kInt8: kv_lora_rank codes, rope_dim codes, then two float32 scales, of the
//          latent and of the rope key: value = code * scale
#ifndef RINGFLEET_KERNELS_ATTENTION_LATENT_CACHE_H_
#define RINGFLEET_KERNELS_ATTENTION_LATENT_CACHE_H_

#include <cstddef>

#include "kernels/dtype.h"

namespace ringfleet::kernels {

// Positions in a cache block. 128 rows of 576 bf16 numbers are 147 KB, which
// stay in a core's level-2 cache while all heads pass over them.
inline constexpr size_t kCacheBlockPositions = 128;

// Returns the blocks that hold `positions` positions.
constexpr int64_t CacheBlocks(int64_t positions) {
  constexpr auto kPositions = static_cast<int64_t>(kCacheBlockPositions);
  return (positions + kPositions - 1) / kPositions;
}

struct LatentRowFormat {
  Dtype dtype = Dtype::kF32;  // kF32, kBf16 or kInt8.
  size_t kv_lora_rank = 0;
  size_t rope_dim = 0;

  size_t numbers() const { return kv_lora_rank + rope_dim; }
  size_t bytes() const;
};

// Stores row [numbers()] f32, rounded to nearest even. Codes of int8 lie in
// [-127, 127] with scale = max |value| / 127. A part with an infinity or a NaN
// gets a NaN scale. A part whose 127 / max overflows (zeros included) gets
// scale 0.
void StoreLatentRow(const LatentRowFormat& format, const float* row,
                    char* destination);

// Widens `count` rows to numbers() floats each, row_stride floats apart.
void LoadLatentRows(const LatentRowFormat& format, const char* rows,
                    size_t count, float* out, size_t row_stride);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_ATTENTION_LATENT_CACHE_H_
