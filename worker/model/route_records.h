// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_MODEL_ROUTE_RECORDS_H_
#define RINGFLEET_WORKER_MODEL_ROUTE_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "worker/model/layer_context.h"

namespace ringfleet::worker {

// Copies routes between the workspace and records, which travel between ranks.
// A record holds the routes of one row: num_experts_per_tok expert ids, int32,
// then num_experts_per_tok router weights, float32. Refers to the workspace.
// Different threads may copy different rows.
class RouteRecords {
 public:
  // Makes room in the workspace for the routes of `rows` rows.
  RouteRecords(LayerContext& context, size_t rows)
      : chosen_(context.spec.num_experts_per_tok),
        ids_(Grow(context.workspace.route_ids, rows * chosen_)),
        weights_(Grow(context.workspace.route_weights, rows * chosen_)) {}

  // Bytes of a record.
  size_t bytes() const { return ids_bytes() + weights_bytes(); }

  // Copies the routes of `row` to `record`.
  void Store(size_t row, char* record) const {
    std::memcpy(record, ids_ + row * chosen_, ids_bytes());
    std::memcpy(record + ids_bytes(), weights_ + row * chosen_,
                weights_bytes());
  }
  // Copies `record` to the routes of `row`.
  void Load(size_t row, const char* record) {
    std::memcpy(ids_ + row * chosen_, record, ids_bytes());
    std::memcpy(weights_ + row * chosen_, record + ids_bytes(),
                weights_bytes());
  }

 private:
  size_t ids_bytes() const { return chosen_ * sizeof(*ids_); }
  size_t weights_bytes() const { return chosen_ * sizeof(*weights_); }

  const size_t chosen_;
  int32_t* const ids_;
  float* const weights_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_ROUTE_RECORDS_H_
