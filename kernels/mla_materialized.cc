// SPDX-License-Identifier: Apache-2.0
#include "kernels/check.h"
#include "kernels/matmul.h"
#include "kernels/mla.h"
#include "kernels/mla_prefill.h"
#include "kernels/mla_task.h"

namespace ringfleet::kernels {

// One cache block after the other is expanded for all heads and attended to by
// every query that sees it. The temporary memory is that of one block, however
// long the context is: with V3's 128 heads 128 * 128 * 256 floats = 16.8 MB,
// and 0.2 MB a thread.
void MlaMaterialized(const MlaArgs& args, const MlaSegment& segment,
                     MlaWorkspace& workspace, ThreadPool& pool) {
  if (args.heads == 0 || segment.num_queries == 0) return;
  RF_CHECK(segment.first_position >= 0);
  RF_CHECK(args.kv_b != nullptr);
  RF_CHECK(args.kv_b->columns() == args.format.kv_lora_rank);
  RF_CHECK(args.kv_b->rows() == args.heads * (args.nope_dim + args.v_dim));
  const size_t num_positions =
      static_cast<size_t>(segment.first_position) + segment.num_queries;
  const size_t num_blocks =
      (num_positions + kCacheBlockPositions - 1) / kCacheBlockPositions;
  RF_CHECK(num_blocks <= segment.blocks.size());

  const size_t numbers = args.format.numbers();
  const size_t expanded_row = args.kv_b->rows();
  float* latents =
      GrowTo<float>(workspace.latents, kCacheBlockPositions * numbers);
  float* expanded =
      GrowTo<float>(workspace.expanded, kCacheBlockPositions * expanded_row);
  for (size_t b = 0; b < num_blocks; ++b) {
    const size_t positions =
        VisibleInBlock(static_cast<int64_t>(num_positions) - 1, b);
    LoadLatentRows(args.format, segment.blocks[b], positions, latents, numbers);
    workspace.x.Assign(ActivationFormFor(args.kv_b->form()), latents, positions,
                       args.format.kv_lora_rank, numbers, pool);
    MatMul(*args.kv_b, workspace.x, expanded, pool);
    MlaAttendExpanded({.args = &args,
                       .segment = &segment,
                       .index = b,
                       .positions = positions,
                       .latents = latents,
                       .expanded = expanded},
                      workspace, pool);
  }
}

bool PreferMaterialized(const MlaArgs& args, const MlaSegment& segment) {
  const double queries = static_cast<double>(segment.num_queries);
  const double visible = static_cast<double>(segment.first_position) + queries;
  const double mean_visible = visible - (queries - 1) / 2;
  const double rank = static_cast<double>(args.format.kv_lora_rank);
  const double expanded_dim = static_cast<double>(args.nope_dim + args.v_dim);
  return rank * expanded_dim * (visible - queries) <
         queries * mean_visible * (2 * rank - expanded_dim);
}

}  // namespace ringfleet::kernels
