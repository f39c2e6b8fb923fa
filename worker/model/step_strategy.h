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

// Sees the wanted rows of the residual stream, x [rows, D] f32: index 0 after
// the embedding, index i after layer i - 1. The observer is not called after
// the last layer.
using StepObserver = absl::FunctionRef<void(int index, const float* x)>;

// One evaluation of all layers for a step's rows.
struct StepPass {
  const Weights& weights;
  const Batch& batch;
  absl::Span<const uint32_t> wanted;     // Rows, ascending.
  std::optional<StepObserver> observer;  // On all ranks or on none.
  float* hidden;                         // [rows, D] f32, output.
};

// How the ranks of a data group share the work of one step: which rows each
// rank holds between products, and whether activations or weights travel.
// Implementations have no state of their own and are thread-safe; buffers lie
// in the context's workspace.
class StepStrategy {
 public:
  virtual ~StepStrategy() = default;

  // Evaluates embedding, layers and final norm. Afterwards the wanted rows of
  // pass.hidden are set, with the same bits on every rank of the data group;
  // other rows are unspecified. All ranks call the same strategy.
  // Errors: those of the collectives. The epoch is over.
  virtual absl::Status Forward(LayerContext& context,
                               const StepPass& pass) const = 0;
};

// Copies the embedding of ids[i] to x + i * stride, D numbers f32.
void EmbedRows(const Weights& weights, absl::Span<const uint32_t> ids,
               size_t stride, float* x);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_STEP_STRATEGY_H_
