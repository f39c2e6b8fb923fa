// SPDX-License-Identifier: Apache-2.0
// The weights of one rank in the form that the layers use. The shard loader
// fills the structs. Loaded weights are immutable and so thread-safe, except
// that experts may move between steps. Sizes marked (local) are this rank's
// part by its ShardPlan, and may be 0. Vectors are float32.
#ifndef RINGFLEET_WORKER_MODEL_WEIGHTS_H_
#define RINGFLEET_WORKER_MODEL_WEIGHTS_H_

#include <cstdint>
#include <vector>

#include "cluster/model/model_spec.h"
#include "cluster/model/shard_plan.h"
#include "kernels/products/weight_matrix.h"

namespace ringfleet::worker {

// Weights of the attention of one layer. D is hidden_size, H the number of
// heads (local), rq q_lora_rank, r kv_lora_rank, dn qk_nope_head_dim, dr
// qk_rope_head_dim, dv v_head_dim.
struct AttentionWeights {
  kernels::WeightMatrix q_a;    // [rq, D]; empty without q_lora_rank.
  std::vector<float> q_a_norm;  // [rq]; empty without q_lora_rank.
  // [H (dn + dr), rq]. Without q_lora_rank: q_proj [H (dn + dr), D].
  kernels::WeightMatrix q_b;
  kernels::WeightMatrix kv_a;           // [r + dr, D]
  std::vector<float> kv_a_norm;         // [r]
  kernels::WeightMatrix kv_b;           // [H (dn + dv), r]
  kernels::WeightMatrix uk_transposed;  // [H r, dn]: W_UK of kv_b, transposed.
  kernels::WeightMatrix o;              // [D, H dv]
};

// Weights of a SwiGLU network. F is its number of columns (local).
struct MlpWeights {
  kernels::WeightMatrix gate;  // [F, D]
  kernels::WeightMatrix up;    // [F, D]
  kernels::WeightMatrix down;  // [D, F]
};

struct MoeWeights {
  kernels::WeightMatrix router;     // [n_routed_experts, D], always float32.
  std::vector<float> router_bias;   // [n_routed_experts]; empty: no bias.
  std::vector<MlpWeights> experts;  // In the order of ExpertLayout::Held.
  kernels::WeightForm expert_form = kernels::WeightForm::kF32;
  MlpWeights shared;  // F is 0 without shared experts.
};

struct LayerWeights {
  std::vector<float> input_norm;           // [D]
  std::vector<float> post_attention_norm;  // [D]
  AttentionWeights attention;
  bool is_moe = false;
  MlpWeights dense;  // Empty if is_moe.
  MoeWeights moe;    // Empty unless is_moe.
};

// Returns the form of input that the gate and up products of the feed-forward
// part read. Gate and up of all experts of a layer read one form.
inline kernels::Activations::Form FeedForwardForm(const LayerWeights& weights) {
  return kernels::ActivationFormFor(weights.is_moe
                                        ? weights.moe.shared.gate.form()
                                        : weights.dense.gate.form());
}

// The multi-token prediction layer (DeepSeek-V3, arXiv:2412.19437, section
// 2.2). The layer uses the embedding and the head of the main model.
struct MtpWeights {
  std::vector<float> enorm;       // [D], for the next token's embedding.
  std::vector<float> hnorm;       // [D], for the hidden state.
  kernels::WeightMatrix eh_proj;  // [D, 2 D]; input: embedding, then hidden.
  LayerWeights layer;             // Has experts.
  std::vector<float> head_norm;   // [D]
};

struct Weights {
  // [vocab_size, D], complete on every rank. bf16, or f32 if the fleet's dtype
  // is f32 and the checkpoint stores more than bf16.
  kernels::WeightMatrix embedding;
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // [D]
  kernels::WeightMatrix head;     // [vocab (local), D]
  std::vector<MtpWeights> mtp;    // At most one.
  uint64_t bytes = 0;             // Sum over all matrices and vectors.
};

// Returns whether a layer has experts. Layers count from 0. The multi-token
// prediction layer comes after the main model's last layer.
inline bool HasExperts(const Weights& weights, uint32_t layer) {
  if (layer < weights.layers.size()) return weights.layers[layer].is_moe;
  const uint32_t behind = layer - static_cast<uint32_t>(weights.layers.size());
  return behind < weights.mtp.size() && weights.mtp[behind].layer.is_moe;
}

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_WEIGHTS_H_
