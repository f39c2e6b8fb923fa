// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_MODEL_STEP_STRATEGY_H_
#define RINGFLEET_WORKER_MODEL_STEP_STRATEGY_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/model/batch.h"
#include "worker/model/layer_context.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// Called with the residual stream x [rows, D] f32, of which only the wanted
// rows are set. Index 0 is the stream after the embedding, index i the stream
// after layer i - 1. There is no call after the last layer.
using StepObserver = absl::FunctionRef<void(int index, const float* x)>;

// Arguments of one evaluation of all layers for a step's rows.
struct StepPass {
  const Weights& weights;
  const Batch& batch;
  absl::Span<const uint32_t> wanted;     // Indices of rows, ascending.
  std::optional<StepObserver> observer;  // On all ranks or on none.
  float* hidden;                         // [rows, D] f32, output.
};

// A way to share the work of one step over the ranks of a data group. It
// decides which rows each rank holds between products, and whether activations
// or weights travel. Implementations have no state and are thread-safe. Their
// buffers lie in the context's workspace.
class StepStrategy {
 public:
  virtual ~StepStrategy() = default;

  // Evaluates embedding, layers and final norm. Sets the wanted rows of
  // pass.hidden, with equal bits on every rank of the data group. Other rows
  // are unspecified. All ranks of the data group must use one strategy.
  // Errors: those of the collectives. The epoch is over after an error.
  virtual absl::Status Forward(LayerContext& context,
                               const StepPass& pass) const = 0;
};

// Copies the embedding of ids[i], D float32 numbers, to x + i * stride.
void EmbedRows(const Weights& weights, absl::Span<const uint32_t> ids,
               size_t stride, float* x);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_STEP_STRATEGY_H_
