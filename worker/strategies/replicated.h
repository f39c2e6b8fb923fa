// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_STRATEGIES_REPLICATED_H_
#define RINGFLEET_WORKER_STRATEGIES_REPLICATED_H_

#include "absl/status/status.h"
#include "worker/model/step_strategy.h"

namespace ringfleet::worker {

// Every rank holds the residual stream of all rows, and each layer ends its two
// parts with an all-reduce (decoder_layer.h). Serves every decode step and
// prompt chunks too short to split. A step without rows of this data group
// still enters all layers, because other groups may need this rank's experts.
class Replicated final : public StepStrategy {
 public:
  absl::Status Forward(LayerContext& context,
                       const StepPass& pass) const override;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_STRATEGIES_REPLICATED_H_
