// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/attention/mla.h"
#include "kernels/attention/mla_prefill.h"
#include "kernels/attention/mla_task.h"
#include "kernels/check.h"
#include "kernels/products/matmul.h"

namespace ringfleet::kernels {

namespace {

// With this much of the cache in floats [positions, heads of a part]: that of
// one block for all heads, however long the context is. With V3's 128 heads
// 128 * 128 * 256 floats = 16.8 MB, and 0.4 MB a thread.
size_t HeadsOfPart(const MlaArgs& args) {
  return (args.heads + kExpandedBlocks - 1) / kExpandedBlocks;
}

}  // namespace

// Some cache blocks after the others are expanded, for some heads at a time,
// and attended to by every query that sees them.
void MlaMaterialized(const MlaArgs& args, const MlaSpan& span,
                     MlaWorkspace& workspace, ThreadPool& pool) {
  if (args.heads == 0 || span.num_queries == 0) return;
  RF_CHECK(span.first_position >= 0);
  RF_CHECK(args.kv_b != nullptr);
  RF_CHECK(args.kv_b->columns() == args.format.kv_lora_rank);
  RF_CHECK(args.kv_b->rows() == args.heads * (args.nope_dim + args.v_dim));
  const size_t num_positions =
      static_cast<size_t>(span.first_position) + span.num_queries;
  const size_t num_blocks =
      (num_positions + kCacheBlockPositions - 1) / kCacheBlockPositions;
  RF_CHECK(num_blocks <= span.blocks.size());

  const size_t numbers = args.format.numbers();
  const size_t expanded_dim = args.nope_dim + args.v_dim;
  const size_t part_positions = kExpandedBlocks * kCacheBlockPositions;
  const size_t part_heads = HeadsOfPart(args);
  float* latents = GrowTo<float>(workspace.latents, part_positions * numbers);
  float* expanded = GrowTo<float>(workspace.expanded,
                                  part_positions * part_heads * expanded_dim);
  for (size_t b = 0; b < num_blocks; b += kExpandedBlocks) {
    const size_t positions =
        std::min(num_positions - b * kCacheBlockPositions, part_positions);
    for (size_t first = 0; first < positions; first += kCacheBlockPositions) {
      LoadLatentRows(args.format, span.blocks[b + first / kCacheBlockPositions],
                     std::min(positions - first, kCacheBlockPositions),
                     latents + first * numbers, numbers);
    }
    workspace.x.Assign(ActivationFormFor(args.kv_b->form()), latents, positions,
                       args.format.kv_lora_rank, numbers, pool);
    for (size_t head = 0; head < args.heads; head += part_heads) {
      const size_t heads = std::min(part_heads, args.heads - head);
      MatMul({{.w = args.kv_b,
               .first_row = head * expanded_dim,
               .num_rows = heads * expanded_dim,
               .x = &workspace.x,
               .batch = positions,
               .y = expanded,
               .y_stride = heads * expanded_dim}},
             pool);
      MlaAttendExpanded({.args = &args,
                         .span = &span,
                         .first_block = b,
                         .positions = positions,
                         .first_head = head,
                         .heads = heads,
                         .latents = latents,
                         .expanded = expanded},
                        workspace, pool);
    }
  }
}

bool PreferMaterialized(const MlaArgs& args, const MlaSpan& span) {
  const double queries = static_cast<double>(span.num_queries);
  const double visible = static_cast<double>(span.first_position) + queries;
  const double mean_visible = visible - (queries - 1) / 2;
  const double rank = static_cast<double>(args.format.kv_lora_rank);
  const double expanded_dim = static_cast<double>(args.nope_dim + args.v_dim);
  return rank * expanded_dim * (visible - queries) <
         queries * mean_visible * (2 * rank - expanded_dim);
}

}  // namespace ringfleet::kernels
