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

// The functions of MlaKernels, all but `attend`. Packed queries are
// [pairs of numbers][padded lanes] pairs; packed values [panels of 64 columns]
// [pairs of positions][64] pairs, the columns padded to 32 with zeros, as is
// the last pair of an odd number of positions.
extern const MlaKernels kMlaBf16Rows;

// Scores to probabilities, [pairs of positions][padded lanes] pairs, for all
// lanes of a block; the factors of what was summed before and, in the end, of
// everything, [kMaxLanes] each.
void SoftmaxBf16(const MlaBlock& block, float* old_factor, float* new_factor);

// The probabilities of a block as [padded lanes][kCacheBlockPositions / 2]
// pairs, zeros behind the last position.
void TransposeProbabilitiesBf16(const MlaBlock& block, void* out);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_ATTENTION_MLA_BF16_BLOCK_H_
