// SPDX-License-Identifier: Apache-2.0
// Gathers between ranks that hold different rows of a step.
#ifndef RINGFLEET_WORKER_MODEL_ROW_GATHER_H_
#define RINGFLEET_WORKER_MODEL_ROW_GATHER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/process/status_macros.h"
#include "worker/fused/row_split.h"
#include "worker/model/layer_context.h"

namespace ringfleet::worker {

// Number of rows that one thread copies in about the time that it takes to wake
// a thread. Fewer rows are not worth a thread.
inline constexpr size_t kRowGrain = 16;

// All-gathers a record of `bytes` bytes for every row of the step:
//   store(i, record) writes the record of this rank's row i, from 0
//   load(row, record) reads the record of row `row` of the step, from 0. Called
//     for the rows of all ranks.
// Several threads of the pool call `store` and `load` at a time, each for
// another row.
// Errors: those of Communicator::AllGather.
template <typename Store, typename Load>
absl::Status GatherRows(LayerContext& context, const RowSplit& split,
                        size_t bytes, Store store, Load load) {
  TimedCommunicator& communicator = context.communicator;
  std::vector<uint64_t>& offsets = communicator.gather_offsets();
  offsets.clear();
  for (const uint64_t offset : split.offsets) offsets.push_back(offset * bytes);
  char* records = Grow(communicator.gather_buffer(), split.rows() * bytes);
  context.pool.ParallelFor(split.size(), kRowGrain,
                           [&](size_t begin, size_t end) {
                             for (size_t i = begin; i < end; ++i) {
                               store(i, records + (split.begin() + i) * bytes);
                             }
                           });
  RF_RETURN_IF_ERROR(communicator.AllGather(
      absl::MakeSpan(records, split.rows() * bytes), offsets));
  context.pool.ParallelFor(split.rows(), kRowGrain,
                           [&](size_t begin, size_t end) {
                             for (size_t row = begin; row < end; ++row) {
                               load(row, records + row * bytes);
                             }
                           });
  return absl::OkStatus();
}

// All-gathers the wanted rows of the residual stream.
//   own [split.size(), D] f32: this rank's rows
//   wanted: indices of rows in the step, ascending, equal on all ranks
//   all [split.rows(), D] f32: output; only the wanted rows are written
// Errors: those of Communicator::AllGather.
absl::Status GatherWantedRows(LayerContext& context, const RowSplit& split,
                              const float* own,
                              absl::Span<const uint32_t> wanted, float* all);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_ROW_GATHER_H_
