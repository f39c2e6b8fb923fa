// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_STRATEGIES_SPLIT_LAYERS_H_
#define RINGFLEET_WORKER_STRATEGIES_SPLIT_LAYERS_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "worker/fused/row_split.h"
#include "worker/model/step_strategy.h"

namespace ringfleet::worker {

// Runs layer `layer` on this rank's rows x [split.size(), D] f32, in place.
using SplitLayer = absl::FunctionRef<absl::Status(
    const LayerWeights& weights, const RowSplit& split, int layer, float* x)>;

// Evaluates a pass in which each rank holds the residual stream of its own rows
// only. Embeds this rank's rows and calls `run_layer` for every layer. Gathers
// the wanted rows of all ranks for each call of the observer, and at the end.
// Errors: those of the gathers, and those of `run_layer`, to which the layer is
// added.
absl::Status RunSplitLayers(LayerContext& context, const StepPass& pass,
                            SplitLayer run_layer);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_STRATEGIES_SPLIT_LAYERS_H_
