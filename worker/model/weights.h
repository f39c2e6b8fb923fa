// SPDX-License-Identifier: Apache-2.0
// The weights of one rank, as the layers use them. Filled by the shard loader,
// immutable afterwards, then thread-safe. Sizes marked (local) are this rank's
// share by its ShardPlan and may be 0; vectors are float32.
#ifndef RINGFLEET_WORKER_MODEL_WEIGHTS_H_
#define RINGFLEET_WORKER_MODEL_WEIGHTS_H_

#include <cstdint>
#include <vector>

#include "cluster/model/model_spec.h"
#include "cluster/model/shard_plan.h"
#include "kernels/products/weight_matrix.h"

namespace ringfleet::worker {

// D hidden_size, H heads (local), rq q_lora_rank, r kv_lora_rank,
// dn/dr/dv the head dimensions nope, rope and value.
struct AttentionWeights {
  kernels::WeightMatrix q_a;            // [rq, D]; empty without q_lora_rank.
  std::vector<float> q_a_norm;          // [rq]; empty without q_lora_rank.
  kernels::WeightMatrix q_b;            // [H (dn + dr), rq], or q_proj [.., D].
  kernels::WeightMatrix kv_a;           // [r + dr, D]
  std::vector<float> kv_a_norm;         // [r]
  kernels::WeightMatrix kv_b;           // [H (dn + dv), r]
  kernels::WeightMatrix uk_transposed;  // [H r, dn]: W_UK of kv_b, transposed.
  kernels::WeightMatrix o;              // [D, H dv]
};

// SwiGLU of local width F.
struct MlpWeights {
  kernels::WeightMatrix gate;  // [F, D]
  kernels::WeightMatrix up;    // [F, D]
  kernels::WeightMatrix down;  // [D, F]
};

struct MoeWeights {
  kernels::WeightMatrix router;     // [E, D], float32 whatever the dtype.
  std::vector<float> router_bias;   // [E]; empty when the model has none.
  std::vector<MlpWeights> experts;  // As ExpertLayout::Held has them.
  kernels::WeightForm expert_form = kernels::WeightForm::kF32;
  MlpWeights shared;  // Width 0 without shared experts.
};

struct LayerWeights {
  std::vector<float> input_norm;           // [D]
  std::vector<float> post_attention_norm;  // [D]
  AttentionWeights attention;
  bool is_moe = false;
  MlpWeights dense;  // Unless is_moe.
  MoeWeights moe;    // If is_moe.
};

// In which gate and up of the feed-forward part, all of one form, read their
// input.
inline kernels::Activations::Form FeedForwardForm(const LayerWeights& weights) {
  return kernels::ActivationFormFor(weights.is_moe
                                        ? weights.moe.shared.gate.form()
                                        : weights.dense.gate.form());
}

// The multi-token prediction layer (DeepSeek-V3, arXiv:2412.19437, section
// 2.2). Embedding and head are the main model's.
struct MtpWeights {
  std::vector<float> enorm;       // [D], for the next token's embedding.
  std::vector<float> hnorm;       // [D], for the hidden state.
  kernels::WeightMatrix eh_proj;  // [D, 2 D], embedding half first.
  LayerWeights layer;             // Always MoE.
  std::vector<float> head_norm;   // [D]
};

struct Weights {
  kernels::WeightMatrix embedding;  // [V, D], replicated; bf16 unless stored
                                    // wider and dtype is f32.
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // [D]
  kernels::WeightMatrix head;     // [vocab (local), D]
  std::vector<MtpWeights> mtp;    // One, or none.
  uint64_t bytes = 0;             // Of all of the above.
};

// Of a layer as ExpertLayout counts them, the multi-token prediction layer
// behind the others.
inline bool HasExperts(const Weights& weights, uint32_t layer) {
  if (layer < weights.layers.size()) return weights.layers[layer].is_moe;
  const uint32_t behind = layer - static_cast<uint32_t>(weights.layers.size());
  return behind < weights.mtp.size() && weights.mtp[behind].layer.is_moe;
}

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_WEIGHTS_H_
