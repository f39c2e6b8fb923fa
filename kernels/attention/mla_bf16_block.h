// SPDX-License-Identifier: Apache-2.0
// The parts of attention that bfloat16 in vectors and in tiles share: factors
// as pairs of numbers in the order of mla_block.h, and the softmax between the
// two products. Requires Isa::kAvx512Bf16.
#ifndef RINGFLEET_KERNELS_ATTENTION_MLA_BF16_BLOCK_H_
#define RINGFLEET_KERNELS_ATTENTION_MLA_BF16_BLOCK_H_

#include <cstddef>

#include "kernels/attention/latent_cache.h"
#include "kernels/attention/mla_block.h"

namespace ringfleet::kernels {

inline constexpr size_t kPairBytes = 4;
inline constexpr size_t kVectorLanes = 16;  // float32 sums, or pairs.
inline constexpr size_t kVectorBytes = 64;

// The functions of MlaKernels except `attend`. Packed queries are
// [pairs of numbers][padded lanes] pairs; packed values [panels of 64 columns]
// [pairs of positions][64] pairs. Zeros pad the columns to 32, and the last
// pair of an odd number of positions.
extern const MlaKernels kMlaBf16Rows;

// Turns scores into probabilities, [pairs of positions][padded lanes] pairs,
// for all lanes of a block. Sets the factors [kMaxLanes] of earlier blocks'
// sums and, after the last block, of the whole sums.
void SoftmaxBf16(const MlaBlock& block, float* old_factor, float* new_factor);

// Writes the probabilities of a block as [padded lanes][kCacheBlockPositions /
// 2] pairs, with zeros behind the last position.
void TransposeProbabilitiesBf16(const MlaBlock& block, void* out);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_ATTENTION_MLA_BF16_BLOCK_H_
