// SPDX-License-Identifier: Apache-2.0
// Chooses the experts of each token. Every rank routes on its own from the
// same activations, so the same bits must come out on every host: logits,
// exp and sigmoid are made in float32 by this file's own code, in a fixed
// order, multiply then add (never the C library's).
#ifndef RINGFLEET_KERNELS_PRODUCTS_ROUTER_H_
#define RINGFLEET_KERNELS_PRODUCTS_ROUTER_H_

#include <cstddef>
#include <cstdint>

namespace ringfleet::kernels {

enum class RouterScore { kSoftmax, kSigmoid };
enum class RouterMethod { kGreedy, kGroupLimitedGreedy, kNoauxTc };

struct RouterParameters {
  RouterScore score = RouterScore::kSigmoid;
  RouterMethod method = RouterMethod::kNoauxTc;
  int num_experts = 0;
  int num_experts_per_tok = 0;
  int n_group = 1;
  int topk_group = 1;
  bool norm_topk_prob = false;
  float routed_scaling_factor = 1;
};

// exp(x) in float32 from additions and multiplications only: the same bits on
// every host. Within 2 units in the last place; 0 below -87.3, clamped above
// 88.7; NaN stays NaN.
float DeterministicExp(float x);

// Scores x [rows, hidden] against weight [num_experts, hidden] (float32, the
// checkpoint's values widened) and writes for each row the chosen experts in
// ascending order with their weights:
//   ids, weights [rows, num_experts_per_tok]
// kNoauxTc is V3's family, the other methods are V2's (arXiv:2405.04434,
// section 2.2). They differ in the group's score (sum of its two highest
// choices; its highest choice) and in the weights: V3 normalises if
// norm_topk_prob says so and always scales; V2 does either the one (for more
// than one expert a token) or the other, as its checkpoints were trained.
// kGreedy ignores the groups.
//
// `bias` [num_experts] is e_score_correction_bias: it takes part in the
// choice, never in the weights (DeepSeek-V3, arXiv:2412.19437, section 2.1.2);
// null without one. Experts outside the kept groups can't be chosen. Ties go
// to the lower index. A NaN logit ranks last (its row of a softmax is all NaN):
// ids stay distinct and in range, and a NaN shows in the weights.
//
// Requires that n_group divides num_experts and that the kept groups hold at
// least num_experts_per_tok experts. `scratch` [3 * num_experts].
void Route(const RouterParameters& parameters, const float* x, size_t rows,
           size_t hidden, const float* weight, const float* bias,
           float* scratch, int32_t* ids, float* weights);

// The same from logits [rows, num_experts]. MatMul with a weight of kF32Rows
// makes the logits that Route makes, bit for bit, in parallel.
void RouteLogits(const RouterParameters& parameters, const float* logits,
                 size_t rows, const float* bias, float* scratch, int32_t* ids,
                 float* weights);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_ROUTER_H_
