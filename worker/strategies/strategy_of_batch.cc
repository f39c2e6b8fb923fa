// SPDX-License-Identifier: Apache-2.0
#include "worker/strategies/strategy_of_batch.h"

#include <algorithm>
#include <cstddef>

#include "cluster/model/prefill_strategy.h"
#include "worker/strategies/replicated.h"
#include "worker/strategies/sequence_parallel.h"
#include "worker/strategies/weight_gather.h"

namespace ringfleet::worker {

const StepStrategy& StrategyOfBatch(v1::PrefillStrategy fleet,
                                    const Batch& batch, int ranks) {
  static const Replicated replicated;
  static const SequenceParallel sequence_parallel;
  static const WeightGather weight_gather;
  size_t longest = 0;
  for (const BatchSpan& span : batch.spans) {
    if (!span.as_decodes) longest = std::max(longest, span.rows);
  }
  switch (cluster::StrategyOfStep(fleet, batch.rows(), longest, ranks)) {
    case v1::PREFILL_STRATEGY_SEQUENCE_PARALLEL:
      return sequence_parallel;
    case v1::PREFILL_STRATEGY_WEIGHT_GATHER:
      return weight_gather;
    default:
      return replicated;
  }
}

}  // namespace ringfleet::worker
