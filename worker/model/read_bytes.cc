// SPDX-License-Identifier: Apache-2.0
#include "worker/model/read_bytes.h"

#include "kernels/attention/mla.h"

namespace ringfleet::worker {

uint64_t MlpReadBytes(const MlpWeights& weights) {
  return weights.gate.bytes() + weights.up.bytes() + weights.down.bytes();
}

uint64_t AttentionReadBytes(const LayerContext& context,
                            const AttentionWeights& weights,
                            const Batch& batch) {
  const cluster::ModelSpec& spec = context.spec;
  uint64_t bytes = weights.q_a.bytes() + weights.q_b.bytes() +
                   weights.kv_a.bytes() + weights.o.bytes();
  bool absorbed = false;
  bool materialized = false;
  for (const BatchSpan& span : batch.spans) {
    const bool expands =
        Materializes({.format = context.cache.format(),
                      .heads = static_cast<size_t>(context.plan.heads.size()),
                      .nope_dim = static_cast<size_t>(spec.qk_nope_head_dim),
                      .v_dim = static_cast<size_t>(spec.v_head_dim)},
                     span);
    (expands ? materialized : absorbed) = true;
    bytes += (span.first_position + span.rows) * context.cache.row_bytes();
  }
  // The absorbed form reads W_UK from its transposed copy and of kv_b only the
  // rows of W_UV.
  if (absorbed) bytes += weights.uk_transposed.bytes();
  if (materialized) {
    bytes += weights.kv_b.bytes();
  } else if (absorbed) {
    bytes += weights.kv_b.bytes() * spec.v_head_dim /
             (spec.qk_nope_head_dim + spec.v_head_dim);
  }
  return bytes;
}

}  // namespace ringfleet::worker
