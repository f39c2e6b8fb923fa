// SPDX-License-Identifier: Apache-2.0
// What both ways to multiply bfloat16, vectors and tiles, share: factors as
// pairs of numbers in the order of mla_block.h, and the softmax between the
// two products. From Isa::kAvx512Bf16 on.
#ifndef RINGFLEET_KERNELS_ATTENTION_MLA_BF16_BLOCK_H_
#define RINGFLEET_KERNELS_ATTENTION_MLA_BF16_BLOCK_H_

#include <cstddef>

#include "kernels/attention/latent_cache.h"
#include "kernels/attention/mla_block.h"

namespace ringfleet::kernels {

inline constexpr size_t kPairBytes = 4;
inline constexpr size_t kVectorLanes = 16;  // float32 sums, or pairs.
inline constexpr size_t kVectorBytes = 64;

constexpr size_t PaddedLanes(size_t lanes) {
  return (lanes + kLaneGroup - 1) / kLaneGroup * kLaneGroup;
}

// Asks for memory that the next block will need, a little with every tile: the
// queue of outstanding lines is short.
class MlaPrefetcher {
 public:
  MlaPrefetcher(const MlaBlock& block, size_t tiles)
      : next_(static_cast<const char*>(block.next)),
        end_(next_ + block.next_bytes),
        tile_bytes_(block.next_bytes / tiles + 1) {}

  void Tile() {
    const char* end = next_ + tile_bytes_ < end_ ? next_ + tile_bytes_ : end_;
    for (; next_ < end; next_ += kVectorBytes) {
      __builtin_prefetch(next_, /*rw=*/0, /*locality=*/2);
    }
  }

 private:
  const char* next_;
  const char* const end_;
  const size_t tile_bytes_;
};

// The functions of MlaKernels, all but `attend`. Packed queries are
// [pairs of numbers][padded lanes] pairs; packed values [panels of 64 columns]
// [pairs of positions][64] pairs, the columns padded to 32 with zeros, as is
// the last pair of an odd number of positions.
extern const MlaKernels kMlaBf16Rows;

// Scores to weights, [pairs of positions][padded lanes] pairs, for all lanes of
// a block; the factors of what was summed before and, in the end, of
// everything, [kMaxLanes] each.
void SoftmaxBf16(const MlaBlock& block, float* old_factor, float* new_factor);

// The weights of a block as [padded lanes][kCacheBlockPositions / 2] pairs,
// zeros behind the last position.
void TransposeWeightsBf16(const MlaBlock& block, void* out);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_ATTENTION_MLA_BF16_BLOCK_H_
