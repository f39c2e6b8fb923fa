// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_STRATEGIES_STRATEGY_OF_BATCH_H_
#define RINGFLEET_WORKER_STRATEGIES_STRATEGY_OF_BATCH_H_

#include "protos/types.pb.h"
#include "worker/model/batch.h"
#include "worker/model/step_strategy.h"

namespace ringfleet::worker {

// Returns the strategy for one data group's part of a step, by
// cluster::StrategyOfStep: `fleet` is the fleet's setting, `ranks` the size of
// the data group. Depends on nothing else, so all ranks of the group choose
// alike. The object lives as long as the process.
const StepStrategy& StrategyOfBatch(v1::PrefillStrategy fleet,
                                    const Batch& batch, int ranks);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_STRATEGIES_STRATEGY_OF_BATCH_H_
