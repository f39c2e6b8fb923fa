// SPDX-License-Identifier: Apache-2.0
// Corrections of a router that make its experts as popular as wanted.
#ifndef RINGFLEET_CLUSTER_SYNTHETIC_EXPERT_POPULARITY_H_
#define RINGFLEET_CLUSTER_SYNTHETIC_EXPERT_POPULARITY_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/products/router.h"

namespace ringfleet::cluster {

// For each expert the probability that a token chooses it: the i-th of a
// ranking gets min(0.98, c / i^zipf), where c makes the sum
// num_experts_per_tok; so their shares of all choices follow Zipf's law as far
// as one token can: at most 0.98 / num_experts_per_tok each. 0 is uniform.
//
// The ranking follows from `key`. Ranks that follow each other share a group:
// a token's experts come from topk_group groups, and if the most popular ones
// were in more groups than that, no router could make them so popular.
std::vector<double> ZipfPopularity(const kernels::RouterParameters& router,
                                   double zipf, uint64_t key);

// The e_score_correction_bias of a noaux_tc router by which tokens choose each
// expert with about the given probability, in [0, 1] with the sum
// num_experts_per_tok.
//
// Tokens are drawn at random: normal numbers with the deviation that `scale`
// [hidden] gives to each element of the router's input (the weights of the
// norm before it). The logits of such a token against `weight` [num_experts,
// hidden] are normal, with a covariance that is computed, so that only they
// have to be drawn: 16384 of them. Biases start at 0 and move by how far the
// normal quantiles of wanted and observed probability differ.
//
// What is reached for other tokens of that kind is within 2 % of the wanted
// probability for a half and 10 % for a hundredth (one deviation of the draws).
// Deterministic, the same bits on every host. Biases are not negative, so that
// also a router that closes a choice by setting it to 0 chooses alike.
std::vector<float> BalanceRouter(const kernels::RouterParameters& router,
                                 absl::Span<const float> weight,
                                 absl::Span<const float> scale,
                                 absl::Span<const double> popularity,
                                 uint64_t key);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_SYNTHETIC_EXPERT_POPULARITY_H_
