// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_MODEL_BATCH_H_
#define RINGFLEET_WORKER_MODEL_BATCH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attention/mla.h"

namespace ringfleet::worker {

// One sequence's part of a batch: a chunk of its prompt, one decoded token, or
// tokens that are replayed. Row first_row + i of the batch holds position
// first_position + i.
struct BatchSpan {
  int slot = 0;  // In the data group, from 0.
  size_t first_row = 0;
  size_t rows = 0;
  int64_t first_position = 0;
  // True if each row has the bits that a decode of it alone has: attention is
  // absorbed, activations are replicated.
  bool as_decodes = false;
  bool absorbed = false;  // Attention is absorbed, whatever the size.
  // An earlier span whose form attention takes. 0 rows: that of this span.
  int64_t form_first_position = 0;
  size_t form_rows = 0;
};

// Returns true if attention expands the span's keys and values.
inline bool Materializes(const kernels::MlaArgs& args, const BatchSpan& span) {
  if (span.as_decodes || span.absorbed) return false;
  const bool repeats = span.form_rows > 0;
  return kernels::PreferMaterialized(
      args, {.first_position =
                 repeats ? span.form_first_position : span.first_position,
             .num_queries = repeats ? span.form_rows : span.rows});
}

// The tokens of one data group in one step, span after span. Each token is one
// row.
struct Batch {
  std::vector<uint32_t> ids;  // [rows]
  std::vector<BatchSpan> spans;

  size_t rows() const { return ids.size(); }
};

// Calls visit(row, slot, position) for each row in [begin, end) of a batch.
template <typename Visit>
void ForEachRow(const Batch& batch, size_t begin, size_t end, Visit visit) {
  for (const BatchSpan& span : batch.spans) {
    const size_t last = std::min(end, span.first_row + span.rows);
    for (size_t row = std::max(begin, span.first_row); row < last; ++row) {
      visit(row, span.slot,
            span.first_position + static_cast<int64_t>(row - span.first_row));
    }
  }
}

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_BATCH_H_
