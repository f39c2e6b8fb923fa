// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_MODEL_PREFILL_STRATEGY_H_
#define RINGFLEET_CLUSTER_MODEL_PREFILL_STRATEGY_H_

#include <cstddef>

#include "absl/strings/string_view.h"
#include "cluster/model/model_spec.h"
#include "protos/types.pb.h"

namespace ringfleet::cluster {

// Least number of rows per rank at which sharding a step's rows over ranks
// pays. With fewer rows the extra reading of weights and the extra collective
// cost more than they save.
inline constexpr size_t kMinShardedRows = 32;

// Returns true if `rows` tokens give an expert least_sharded_rows / 2 tokens or
// more on average. A sequence-parallel step then computes the down product in
// pieces, which are exchanged while the next one is computed. Pieces cost
// a second reading of the down weights, which are a third of an expert's. The
// overlap is worth it from least_sharded_rows / 2 tokens per expert on.
bool ExpertsHaveRows(const ModelSpec& spec, size_t rows,
                     size_t least_sharded_rows = kMinShardedRows);

// Returns the strategy's name in flags and cluster files.
absl::string_view PrefillStrategyName(v1::PrefillStrategy strategy);

// Returns the strategy for one step of `ranks` ranks: REPLICATED,
// SEQUENCE_PARALLEL or WEIGHT_GATHER. `strategy` is the fleet's.
// `longest_span` is the number of rows of the longest span that is no replay of
// decodes; 0: there is none. A step is REPLICATED if ranks is 1 or longest_span
// is below 2. AUTO becomes
// SEQUENCE_PARALLEL from kMinShardedRows rows per rank on, and else REPLICATED.
// All arguments are equal on all ranks, so all ranks choose one strategy.
v1::PrefillStrategy StrategyOfStep(v1::PrefillStrategy strategy, size_t rows,
                                   size_t longest_span, int ranks);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_PREFILL_STRATEGY_H_
