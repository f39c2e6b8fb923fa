// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_MODEL_EXPERT_COST_H_
#define RINGFLEET_CLUSTER_MODEL_EXPERT_COST_H_

#include <cstdint>

namespace ringfleet::cluster {

// Tokens whose products take as long as reading an expert's weights once: 44 MB
// of int8 against 44 million products a token, on cores that read 20 GB/s.
inline constexpr int64_t kExpertReadTokens = 16;

// Rounds in which a step's tokens are dealt out to replicas. Each round deals
// one expert's tokens against the last load of all other experts, because the
// first choices do not know the last choices.
inline constexpr int kDealRounds = 3;

// Returns the cost of an expert with `tokens` in a step for its host, in
// tokens.
inline int64_t ExpertCost(int64_t tokens) {
  if (tokens == 0) return 0;
  return tokens > kExpertReadTokens ? tokens : kExpertReadTokens;
}

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_EXPERT_COST_H_
