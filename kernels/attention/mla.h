// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention over a cache of latents (DeepSeek-V2,
// arXiv:2405.04434, section 2.1). A cached row is (latent, rope key), shared
// by all heads.
//
// Scores, statistics and sums are float32. The factors of the two products are
// bfloat16 where the cache is bfloat16 or int8 and the host multiplies bfloat16
// (Isa::kAvx512Bf16), else float32.
#ifndef RINGFLEET_KERNELS_ATTENTION_MLA_H_
#define RINGFLEET_KERNELS_ATTENTION_MLA_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/attention/latent_cache.h"
#include "kernels/attention/mla_decode.h"
#include "kernels/attention/mla_workspace.h"
#include "kernels/products/weight_matrix.h"
#include "kernels/thread_pool.h"

namespace ringfleet::kernels {

// Arguments that all spans of a step share. `heads` counts this shard's
// heads and may be 0.
struct MlaArgs {
  LatentRowFormat format;  // Form of the cached rows.
  size_t heads = 0;
  size_t nope_dim = 0;
  size_t v_dim = 0;
  float softmax_scale = 0;
  // [rows, heads, nope_dim + rope_dim] f32, the rope part rotated.
  const float* q = nullptr;
  // [heads * (nope_dim + v_dim), kv_lora_rank]: per head W_UK, then W_UV.
  const WeightMatrix* kv_b = nullptr;
  // [heads * kv_lora_rank, nope_dim]: per head W_UK transposed.
  const WeightMatrix* uk_transposed = nullptr;
  float* out = nullptr;  // [rows, heads, v_dim] f32
};

// Absorbed form: queries are brought into the latent space (W_UK^T q), and the
// cache is read as it lies (sections 2.1.2-2.1.3). Row invariant.
void MlaAbsorbed(const MlaArgs& args, absl::Span<const MlaSpan> spans,
                 MlaWorkspace& workspace, ThreadPool& pool);

// Materialised form: keys and values of every visible position are expanded
// per head, kExpandedBlocks cache blocks at a time, then attended to. Fewer
// operations for many queries.
void MlaMaterialized(const MlaArgs& args, const MlaSpan& span,
                     MlaWorkspace& workspace, ThreadPool& pool);

// Returns true if the materialised form needs fewer operations for these sizes:
//
//   r (dn + dv) (T - Lq) < Lq T (2 r - dn - dv)
//
// T is the number of visible positions, for queries inside the chunk their
// mean. A chunk and its past are attended to in one form. A mixture, with the
// past absorbed and the chunk expanded, would pay twice: for the products of
// queries and results with W_UK and W_UV, and for expanding the chunk. With X =
// 2 r - dn - dv the mixture beats the absorbed form only if Lq X > 2 r (dn +
// dv). From half of this Lq on, the materialised form beats the mixture for any
// past.
bool PreferMaterialized(const MlaArgs& args, const MlaSpan& span);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_ATTENTION_MLA_H_
