// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_ATTENTION_MLA_DECODE_H_
#define RINGFLEET_KERNELS_ATTENTION_MLA_DECODE_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/attention/latent_cache.h"
#include "kernels/attention/mla_workspace.h"
#include "kernels/thread_pool.h"

namespace ringfleet::kernels {

// Queries of consecutive positions of one sequence.
struct MlaSpan {
  // Block b holds positions [b * kCacheBlockPositions, ...), row after row.
  absl::Span<const char* const> blocks;
  int64_t first_position = 0;  // The first query's; its key is cached.
  size_t num_queries = 0;  // Query i sees positions 0 .. first_position + i.
  size_t first_row = 0;    // The first query's, in q and out.
};

struct MlaDecodeArgs {
  LatentRowFormat format;
  absl::Span<const MlaSpan> spans;
  size_t heads = 0;
  float softmax_scale = 0;
  const float* q = nullptr;  // [rows, heads, kv_lora_rank + rope_dim] f32
  float* out = nullptr;      // [rows, heads, kv_lora_rank] f32
};

// Attends to cached latents with queries that W_UK is already folded into
// (DeepSeek-V2, arXiv:2405.04434, sections 2.1.2-2.1.3):
//
//   p[h]   = softmax over t of softmax_scale * q[h] . (latent[t], rope[t])
//   out[h] = sum over t of p[h, t] * latent[t]
//
// A long context is cut into parts, whose results are merged in order (the
// split softmax of Flash-Decoding and arXiv:1805.02867). The borders depend on
// the query's position only. A result therefore depends on its query and the
// positions that it sees, bit for bit, not on the other queries, the threads or
// how the heads are grouped.
void MlaDecode(const MlaDecodeArgs& args, MlaWorkspace& workspace,
               ThreadPool& pool);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_ATTENTION_MLA_DECODE_H_
