// SPDX-License-Identifier: Apache-2.0
// Corrections of a router that make its experts as popular as wanted.
#ifndef RINGFLEET_CLUSTER_SYNTHETIC_EXPERT_POPULARITY_H_
#define RINGFLEET_CLUSTER_SYNTHETIC_EXPERT_POPULARITY_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/products/router.h"

namespace ringfleet::cluster {

// Returns for each expert the probability that a token chooses it. The i-th of
// a ranking gets min(0.98, c / i^zipf), where c makes the sum
// num_experts_per_tok. Parts of all choices follow Zipf's law as far as they
// can: one expert has at most 0.98 / num_experts_per_tok. zipf 0 is uniform.
//
// The ranking follows from `key`. Neighbours in the ranking have one group,
// because a token's experts come from topk_group groups: no router could make
// the most popular experts popular enough if they were in more groups.
std::vector<double> ZipfPopularity(const kernels::RouterParameters& router,
                                   double zipf, uint64_t key);

// The e_score_correction_bias of a noaux_tc router by which tokens choose each
// expert with about the given probability, in [0, 1] with the sum
// num_experts_per_tok.
//
// A token is a normal vector with the deviation `scale` [hidden] (the weights
// of the norm before the router). Its logits against `weight` [num_experts,
// hidden] are normal with a covariance that is computed, so that only logits
// are drawn, 16384 times. Biases start at 0 and move by the difference of the
// normal quantiles of wanted and observed probability.
//
// Other tokens of this kind choose with a probability within 2 % of a wanted
// half and within 10 % of a wanted hundredth (one deviation of the draws).
// Every host gets the same bits. Biases are not negative, so that a router that
// closes a choice by setting it to 0 chooses alike.
std::vector<float> BalanceRouter(const kernels::RouterParameters& router,
                                 absl::Span<const float> weight,
                                 absl::Span<const float> scale,
                                 absl::Span<const double> popularity,
                                 uint64_t key);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_SYNTHETIC_EXPERT_POPULARITY_H_
