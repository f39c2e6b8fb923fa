// SPDX-License-Identifier: Apache-2.0
#include "worker/model/step_strategy.h"

namespace ringfleet::worker {

void EmbedRows(const Weights& weights, absl::Span<const uint32_t> ids,
               size_t stride, float* x) {
  for (size_t i = 0; i < ids.size(); ++i) {
    weights.embedding.GetRow(ids[i], x + i * stride);
  }
}

}  // namespace ringfleet::worker
