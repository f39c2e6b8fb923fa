// SPDX-License-Identifier: Apache-2.0
// What the two forms of latent attention share: the softmax over one cache
// block that is merged into the sums of the blocks before it.
//
// Within a block the scores are taken relative to the block's own maximum, not
// to the running one: the block's sums then depend on nothing outside it, and
// only the merge has an order (the split softmax of Flash-Decoding and
// arXiv:1805.02867).
#ifndef RINGFLEET_KERNELS_MLA_INL_H_
#define RINGFLEET_KERNELS_MLA_INL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/check.h"
#include "kernels/dot-inl.h"
#include "kernels/exp-inl.h"
#include "kernels/matmul.h"
#include "kernels/mla.h"
#include "kernels/thread_pool.h"

namespace ringfleet::kernels {

// scores[n][t] = keys[t] . queries[n], t < count.
template <int N, typename Element>
inline void ScoreRows(const Element* keys, size_t stride, size_t count,
                      const float* const* queries, size_t size,
                      float (*scores)[kCacheBlockPositions]) {
  for (size_t t = 0; t < count; ++t) {
    float out[N];
    DotRows<N>(keys + t * stride, queries, size, out);
    for (int n = 0; n < N; ++n) scores[n][t] = out[n];
  }
}

// Of the blocks seen so far, or of one block: sum of exp(score - max).
struct SoftmaxSum {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
};

// Replaces scores by exp(scale * score - max).
inline SoftmaxSum ExponentiateBlock(float scale, size_t count, float* scores) {
  SoftmaxSum block;
  for (size_t t = 0; t < count; ++t) {
    scores[t] *= scale;
    block.max = scores[t] > block.max ? scores[t] : block.max;
  }
  const float max = block.max;
  size_t t = 0;
  for (; t + 4 <= count; t += 4) {
    Store4(Exp(Load4(scores + t) - max), scores + t);
  }
  for (; t < count; ++t) scores[t] = Exp(scores[t] - max);
  for (t = 0; t < count; ++t) block.sum += scores[t];
  return block;
}

// Softmax of one block's scores and its weighted sum of values [count, size],
// merged into `states` and `out`, which start as {} and zeros.
template <int N, typename Element>
inline void MergeBlock(const Element* values, size_t stride, size_t count,
                       size_t size, float scale,
                       float (*scores)[kCacheBlockPositions],
                       SoftmaxSum* const* states, float* const* out) {
  const float* weights[N];
  float old_factor[N];
  float new_factor[N];
  for (int n = 0; n < N; ++n) {
    const SoftmaxSum block = ExponentiateBlock(scale, count, scores[n]);
    SoftmaxSum& state = *states[n];
    const float max = std::max(state.max, block.max);
    weights[n] = scores[n];
    old_factor[n] = Exp(state.max - max);
    new_factor[n] = Exp(block.max - max);
    state.sum = state.sum * old_factor[n] + block.sum * new_factor[n];
    state.max = max;
  }
  WeightedSumRows<N>(values, stride, count, weights, size, old_factor,
                     new_factor, out);
}

// Positions of block `block` that a query at `position` sees.
inline size_t VisibleInBlock(int64_t position, size_t block) {
  const size_t visible = static_cast<size_t>(position) + 1;
  const size_t begin = block * kCacheBlockPositions;
  return visible <= begin ? 0 : std::min(visible - begin, kCacheBlockPositions);
}

inline size_t NumBlocks(const MlaArgs& args) {
  const size_t positions =
      static_cast<size_t>(args.first_position) + args.num_queries;
  return (positions + kCacheBlockPositions - 1) / kCacheBlockPositions;
}

inline void CheckMlaArgs(const MlaArgs& args) {
  RF_CHECK(args.cache.dtype == Dtype::kF32 || args.cache.dtype == Dtype::kBf16);
  RF_CHECK(args.first_position >= 0);
  RF_CHECK(NumBlocks(args) <= args.cache.blocks.size());
  RF_CHECK(args.kv_b != nullptr);
  RF_CHECK(args.kv_b->columns() == args.cache.kv_lora_rank);
  RF_CHECK(args.kv_b->rows() == args.heads * (args.nope_dim + args.v_dim));
}

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_MLA_INL_H_
