// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/parameter_count.h"

namespace ringfleet::cluster {

uint64_t CountParameters(const ModelSpec& spec) {
  const uint64_t hidden = spec.hidden_size;
  const uint64_t heads = spec.num_attention_heads;
  const uint64_t query = heads * spec.qk_head_dim();
  const uint64_t q_rank = spec.q_lora_rank;
  const uint64_t kv_rank = spec.kv_lora_rank;
  const uint64_t nope_and_v = spec.qk_nope_head_dim + spec.v_head_dim;
  const uint64_t queries =
      q_rank == 0 ? hidden * query : q_rank * (hidden + 1 + query);
  const uint64_t attention = queries + hidden * spec.cache_row() + kv_rank +
                             kv_rank * heads * nope_and_v +
                             heads * spec.v_head_dim * hidden;
  const uint64_t expert = 3 * hidden * spec.moe_intermediate_size;
  const uint64_t experts = spec.n_routed_experts;
  const uint64_t bias = spec.topk_method == TopkMethod::kNoauxTc ? experts : 0;
  const uint64_t moe =
      (experts + spec.n_shared_experts) * expert + experts * hidden + bias;
  const uint64_t dense = 3 * hidden * spec.intermediate_size;

  uint64_t total = hidden * spec.vocab_size + hidden;  // And the last norm.
  if (!spec.tie_word_embeddings) total += hidden * spec.vocab_size;
  for (int layer = 0; layer < spec.num_hidden_layers; ++layer) {
    total += 2 * hidden + attention + (spec.IsMoeLayer(layer) ? moe : dense);
  }
  return total;
}

}  // namespace ringfleet::cluster
