// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_STRATEGIES_STRATEGY_OF_BATCH_H_
#define RINGFLEET_WORKER_STRATEGIES_STRATEGY_OF_BATCH_H_

#include "protos/types.pb.h"
#include "worker/model/batch.h"
#include "worker/model/step_strategy.h"

namespace ringfleet::worker {

// Returns the strategy for one data group's batch, by cluster::StrategyOfStep.
// `fleet` is the fleet's setting; `ranks` is the number of ranks in the data
// group. The choice depends on the arguments only, so all ranks of the data
// group choose one strategy. The object lives as long as the process.
const StepStrategy& StrategyOfBatch(v1::PrefillStrategy fleet,
                                    const Batch& batch, int ranks);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_STRATEGIES_STRATEGY_OF_BATCH_H_
