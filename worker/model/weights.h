// SPDX-License-Identifier: Apache-2.0
// The weights of one rank, as the layers use them. The shard loader fills them;
// afterwards they are immutable, and so thread-safe, except that experts move
// between steps. Sizes marked (local) follow from the rank's ShardPlan and may
// be 0. Vectors are float32.
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
  kernels::WeightMatrix router;     // [E, D], float32 for every dtype.
  std::vector<float> router_bias;   // [E]; empty: the model has none.
  std::vector<MlpWeights> experts;  // In the order of ExpertLayout::Held.
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

// Returns the form in which gate and up of the feed-forward part read their
// input. All of them have one form.
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
  kernels::WeightMatrix eh_proj;  // [D, 2 D], embedding first.
  LayerWeights layer;             // Always MoE.
  std::vector<float> head_norm;   // [D]
};

struct Weights {
  // [V, D], replicated. bf16, or f32 where the checkpoint stores more than bf16
  // and the dtype is f32.
  kernels::WeightMatrix embedding;
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // [D]
  kernels::WeightMatrix head;     // [vocab (local), D]
  std::vector<MtpWeights> mtp;    // One, or none.
  uint64_t bytes = 0;             // Sum over all matrices and vectors.
};

// Returns whether a layer has experts. `layer` counts as in ExpertLayout, with
// the multi-token prediction layer behind the others.
inline bool HasExperts(const Weights& weights, uint32_t layer) {
  if (layer < weights.layers.size()) return weights.layers[layer].is_moe;
  const uint32_t behind = layer - static_cast<uint32_t>(weights.layers.size());
  return behind < weights.mtp.size() && weights.mtp[behind].layer.is_moe;
}

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_WEIGHTS_H_
