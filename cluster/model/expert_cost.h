// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_MODEL_EXPERT_COST_H_
#define RINGFLEET_CLUSTER_MODEL_EXPERT_COST_H_

#include <cstdint>

namespace ringfleet::cluster {

// Number of tokens at which an expert's products take as long as reading its
// weights once. Measured with an expert of 44 MB int8, which takes 44 million
// multiply-adds a token, on cores that read 20 GB/s.
inline constexpr int64_t kExpertReadTokens = 16;

// Number of rounds that deal a step's tokens to replicas. A round deals the
// tokens of one expert after another, by the load that all other experts put on
// each host. Several rounds are needed, because the first round deals the first
// experts before it knows the load of the last ones.
inline constexpr int kDealRounds = 3;

// Returns the time that an expert with `tokens` tokens takes in a step. The
// unit is the time of one token's products. The time is 0 without tokens, and
// at least kExpertReadTokens otherwise, because the weights are read.
inline int64_t ExpertCost(int64_t tokens) {
  if (tokens == 0) return 0;
  return tokens > kExpertReadTokens ? tokens : kExpertReadTokens;
}

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_EXPERT_COST_H_
