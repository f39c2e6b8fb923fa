// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_ATTENTION_MLA_PREFILL_H_
#define RINGFLEET_KERNELS_ATTENTION_MLA_PREFILL_H_

#include <cstddef>

#include "kernels/attention/mla.h"
#include "kernels/attention/mla_workspace.h"
#include "kernels/thread_pool.h"

namespace ringfleet::kernels {

// Cache blocks that are expanded together. Queries and results of a prompt
// cross the memory once for so many. At V3's sizes the keys and values of a
// head in bfloat16 are then 328 KB, which a level-2 cache holds.
inline constexpr size_t kExpandedBlocks = 4;

// Some blocks of a sequence's cache, expanded for some heads. The keys' rope
// part is the same for all heads and stays with the latents.
struct MlaExpandedPart {
  const MlaArgs* args = nullptr;
  const MlaSpan* span = nullptr;
  size_t first_block = 0;  // In span->blocks.
  size_t positions = 0;  // In at most kExpandedBlocks, up to the last query's.
  size_t first_head = 0;
  size_t heads = 0;
  // [positions, kv_lora_rank + rope_dim] f32
  const float* latents = nullptr;
  // [positions, heads, nope_dim + v_dim] f32: keys without rope part, values.
  const float* expanded = nullptr;
};

// Attends with every query of the span that sees the part. Requires calls
// for the parts of a head in the order of their blocks, with one workspace.
// args->out has a query's result after the last block that the query sees. The
// result depends on the positions that the query sees only, bit for bit.
void MlaAttendExpanded(const MlaExpandedPart& part, MlaWorkspace& workspace,
                       ThreadPool& pool);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_ATTENTION_MLA_PREFILL_H_
