// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_MLA_PREFILL_H_
#define RINGFLEET_KERNELS_MLA_PREFILL_H_

#include <cstddef>

#include "kernels/mla.h"
#include "kernels/mla_workspace.h"
#include "kernels/thread_pool.h"

namespace ringfleet::kernels {

// A block of a sequence's cache, expanded for every head. The keys' rope part
// is the same for all heads and stays with the latents.
struct MlaExpandedBlock {
  const MlaArgs* args = nullptr;
  const MlaSegment* segment = nullptr;
  size_t index = 0;      // In segment->blocks.
  size_t positions = 0;  // Up to the last query's.
  // [positions, kv_lora_rank + rope_dim] f32
  const float* latents = nullptr;
  // [positions, heads, nope_dim + v_dim] f32: keys without rope part, values.
  const float* expanded = nullptr;
};

// Attends with every query of the segment that sees the block. Called for the
// blocks in order, with one workspace; a query's results are those of `args`
// after the last block that it sees. What a query gets depends on the positions
// that it sees only, bit for bit.
void MlaAttendExpanded(const MlaExpandedBlock& block, MlaWorkspace& workspace,
                       ThreadPool& pool);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_MLA_PREFILL_H_
