// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_STRATEGIES_REPLICATED_H_
#define RINGFLEET_WORKER_STRATEGIES_REPLICATED_H_

#include "absl/status/status.h"
#include "worker/model/step_strategy.h"

namespace ringfleet::worker {

// The strategy in which every rank holds the residual stream of all rows. Each
// layer has two all-reduces: after attention and after the feed-forward part
// (decoder_layer.h). Serves every decode step, and prompt chunks that are too
// short to split. Forward runs all layers even if this data group has no rows,
// because other data groups may need this rank's experts.
class Replicated final : public StepStrategy {
 public:
  absl::Status Forward(LayerContext& context,
                       const StepPass& pass) const override;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_STRATEGIES_REPLICATED_H_
