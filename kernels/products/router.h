// SPDX-License-Identifier: Apache-2.0
// Chooses the experts of each token. Every rank routes on its own from equal
// activations, so every host must compute equal bits. exp and sigmoid are
// therefore this file's own, not the C library's: float32 in a fixed order,
// multiply, then add.
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

// Returns exp(x) in float32, from additions and multiplications only: equal
// bits on every host, within 2 units in the last place. 0 below -87.3, clamped
// above 88.7; NaN stays NaN.
float DeterministicExp(float x);

// Chooses the experts of each row of logits [rows, num_experts], which MatMul
// of a router of kF32Rows makes with the same bits on every host. Writes them
// in ascending order with their weights: ids, weights [rows,
// num_experts_per_tok].
//
// kNoauxTc is V3's family, the other methods are V2's (arXiv:2405.04434,
// section 2.2). They differ in the score of a group and in the weights:
//   kNoauxTc             a group's score is the sum of its two highest choices.
//                        Weights are normalised if norm_topk_prob says so, and
//                        always scaled.
//   kGroupLimitedGreedy  a group's score is its highest choice. Weights are
//                        either normalised (for more than one expert a token)
//                        or scaled, as V2's checkpoints were trained.
//   kGreedy              ignores the groups; weights as kGroupLimitedGreedy.
//
// `bias` [num_experts] is e_score_correction_bias. The bias takes part in the
// choice, never in the weights (DeepSeek-V3, arXiv:2412.19437, section 2.1.2).
// Null: the model has none. Experts outside the kept groups are not chosen.
// Ties go to the lower index. A NaN logit ranks last (its row of a softmax is
// all NaN), ids stay distinct and in range, and the NaN shows in the weights.
//
// Requires that n_group divides num_experts and that the kept groups hold at
// least num_experts_per_tok experts. `scratch` [3 * num_experts].
void RouteLogits(const RouterParameters& parameters, const float* logits,
                 size_t rows, const float* bias, float* scratch, int32_t* ids,
                 float* weights);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_ROUTER_H_
