// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/prefill_strategy.h"

#include "absl/strings/str_cat.h"

namespace ringfleet::cluster {
namespace {

struct StrategyName {
  v1::PrefillStrategy strategy;
  absl::string_view name;
};

constexpr StrategyName kStrategies[] = {
    {v1::PREFILL_STRATEGY_AUTO, "auto"},
    {v1::PREFILL_STRATEGY_REPLICATED, "replicated"},
    {v1::PREFILL_STRATEGY_SEQUENCE_PARALLEL, "sequence_parallel"},
    {v1::PREFILL_STRATEGY_WEIGHT_GATHER, "weight_gather"}};

}  // namespace

bool ExpertsHaveRows(const ModelSpec& spec, size_t rows,
                     size_t least_sharded_rows) {
  return 2 * rows * static_cast<size_t>(spec.num_experts_per_tok) >=
         least_sharded_rows * static_cast<size_t>(spec.n_routed_experts);
}

absl::StatusOr<v1::PrefillStrategy> ParsePrefillStrategy(
    absl::string_view name) {
  for (const StrategyName& entry : kStrategies) {
    if (entry.name == name) return entry.strategy;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "prefill strategy ", name, ", want ", kPrefillStrategyChoices));
}

absl::string_view PrefillStrategyName(v1::PrefillStrategy strategy) {
  for (const StrategyName& entry : kStrategies) {
    if (entry.strategy == strategy) return entry.name;
  }
  return "auto";
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
