// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention over a cache of latents (DeepSeek-V2,
// arXiv:2405.04434, section 2.1). A cached row is (latent, rope key), shared
// by all heads. The cache of a sequence is a list of blocks of
// kCacheBlockPositions rows, and every sum over positions is made block by
// block and merged in order, so a result never depends on threads or on how
// many positions lie behind the query.
#ifndef RINGFLEET_KERNELS_MLA_H_
#define RINGFLEET_KERNELS_MLA_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/dtype.h"
#include "kernels/thread_pool.h"
#include "kernels/weight_matrix.h"

namespace ringfleet::kernels {

// Positions in a cache block: 128 rows of 576 bf16 numbers are 147 KB, which
// stays in a core's L2 while all heads pass over it.
inline constexpr size_t kCacheBlockPositions = 128;

// One layer of one sequence's cache.
struct LatentCacheView {
  Dtype dtype = Dtype::kF32;  // kF32 or kBf16.
  size_t kv_lora_rank = 0;
  size_t rope_dim = 0;
  // Block b holds positions [b * kCacheBlockPositions, ...), rows of
  // kv_lora_rank + rope_dim elements, row-major.
  absl::Span<const char* const> blocks;
};

// Queries of consecutive positions of one sequence. `heads` counts this
// shard's heads and may be 0.
struct MlaArgs {
  LatentCacheView cache;
  size_t heads = 0;
  size_t nope_dim = 0;
  size_t v_dim = 0;
  float softmax_scale = 0;
  int64_t first_position = 0;  // Of the first query; its key is cached.
  size_t num_queries = 0;  // Query i sees positions 0 .. first_position + i.
  // [num_queries, heads, nope_dim + rope_dim] f32, the rope part rotated.
  const float* q = nullptr;
  // [heads * (nope_dim + v_dim), kv_lora_rank]: per head W_UK, then W_UV.
  const WeightMatrix* kv_b = nullptr;
  // [heads * kv_lora_rank, nope_dim]: per head W_UK transposed.
  const WeightMatrix* uk_transposed = nullptr;
  float* out = nullptr;  // [num_queries, heads, v_dim] f32
};

// Absorbed form: queries are brought into the latent space (W_UK^T q) and the
// cache is read as it lies; one pass, online softmax (section 2.1.2-2.1.3).
// Row invariant.
void MlaAbsorbed(const MlaArgs& args, ThreadPool& pool);

// Materialised form: keys and values of every visible position are expanded
// per head, then attended to. Fewer operations for many queries.
void MlaMaterialized(const MlaArgs& args, ThreadPool& pool);

// Whether the materialised form needs fewer operations for these sizes:
// r (dn + dv) (T - Lq) < Lq T (2 r - dn - dv), T = all visible positions, with
// the mean visible length for queries inside the chunk.
bool PreferMaterialized(const MlaArgs& args);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_MLA_H_
