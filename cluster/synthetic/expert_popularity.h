// SPDX-License-Identifier: Apache-2.0
// Computes a router's correction biases such that each expert is chosen with a
// wanted probability.
#ifndef RINGFLEET_CLUSTER_SYNTHETIC_EXPERT_POPULARITY_H_
#define RINGFLEET_CLUSTER_SYNTHETIC_EXPERT_POPULARITY_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/products/router.h"

namespace ringfleet::cluster {

// Returns for each expert the probability that a token chooses it. The expert
// of rank i, from 1, gets min(0.98, c / i^zipf). c is such that the sum is
// num_experts_per_tok. So probabilities follow Zipf's law, up to 0.98 for one
// expert. zipf 0 is uniform.
//
// The ranking follows from `key`. Experts of one group have consecutive ranks.
// A token's experts come from topk_group groups only, so popular experts in
// more groups could not reach their probabilities.
std::vector<double> ZipfPopularity(const kernels::RouterParameters& router,
                                   double zipf, uint64_t key);

// Returns the e_score_correction_bias of a noaux_tc router with which tokens
// choose expert e with about probability popularity[e]. Each probability must
// be in [0, 1], and their sum num_experts_per_tok.
//
// A token is modelled as a normal vector with the deviations `scale` [hidden]
// (the weights of the norm before the router). Its logits against `weight`
// [num_experts, hidden] are then normal. Their covariance is computed, and
// 16384 vectors of logits are drawn. Biases start at 0. Each round moves a bias
// in proportion to the difference between the normal quantiles of the wanted
// and of the observed probability.
//
// Observed probabilities of other such tokens differ by 2 % from a wanted 0.5,
// and by 10 % from a wanted 0.01 (one standard deviation of the draws). Every
// host gets the same bits. Biases are not negative. So a router may exclude an
// expert by setting its score to 0.
std::vector<float> BalanceRouter(const kernels::RouterParameters& router,
                                 absl::Span<const float> weight,
                                 absl::Span<const float> scale,
                                 absl::Span<const double> popularity,
                                 uint64_t key);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_SYNTHETIC_EXPERT_POPULARITY_H_
