// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_MODEL_PREFILL_STRATEGY_H_
#define RINGFLEET_CLUSTER_MODEL_PREFILL_STRATEGY_H_

#include <cstddef>

#include "absl/strings/string_view.h"
#include "cluster/model/model_spec.h"
#include "protos/types.pb.h"

namespace ringfleet::cluster {

// Rows per rank from which a product's weights are worth reading once more for
// the price of one more collective.
inline constexpr size_t kMinShardedRows = 32;

// True if experts get enough of `rows` tokens to read their last weights, a
// third of all, once more for these tokens: least_sharded_rows / 2 each in the
// mean.
bool ExpertsHaveRows(const ModelSpec& spec, size_t rows,
                     size_t least_sharded_rows = kMinShardedRows);

// Returns the name that flags and cluster files have.
absl::string_view PrefillStrategyName(v1::PrefillStrategy strategy);

// Decides how `ranks` ranks share out a step: REPLICATED, SEQUENCE_PARALLEL or
// WEIGHT_GATHER. Only the fleet's strategy, the step's rows and its longest
// span count, so that all ranks decide alike. A step without a span of a prompt
// is always replicated.
v1::PrefillStrategy StrategyOfStep(v1::PrefillStrategy strategy, size_t rows,
                                   size_t longest_span, int ranks);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_PREFILL_STRATEGY_H_
