// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/prefill_strategy.h"

namespace ringfleet::cluster {

bool ExpertsHaveRows(const ModelSpec& spec, size_t rows,
                     size_t least_sharded_rows) {
  return 2 * rows * static_cast<size_t>(spec.num_experts_per_tok) >=
         least_sharded_rows * static_cast<size_t>(spec.n_routed_experts);
}

absl::string_view PrefillStrategyName(v1::PrefillStrategy strategy) {
  switch (strategy) {
    case v1::PREFILL_STRATEGY_REPLICATED:
      return "replicated";
    case v1::PREFILL_STRATEGY_SEQUENCE_PARALLEL:
      return "sequence_parallel";
    case v1::PREFILL_STRATEGY_WEIGHT_GATHER:
      return "weight_gather";
    default:
      return "auto";
  }
}

v1::PrefillStrategy StrategyOfStep(v1::PrefillStrategy strategy, size_t rows,
                                   size_t longest_span, int ranks) {
  if (ranks == 1 || longest_span < 2) return v1::PREFILL_STRATEGY_REPLICATED;
  if (strategy != v1::PREFILL_STRATEGY_AUTO &&
      strategy != v1::PREFILL_STRATEGY_UNSPECIFIED) {
    return strategy;
  }
  return rows >= kMinShardedRows * static_cast<size_t>(ranks)
             ? v1::PREFILL_STRATEGY_SEQUENCE_PARALLEL
             : v1::PREFILL_STRATEGY_REPLICATED;
}

}  // namespace ringfleet::cluster
