// SPDX-License-Identifier: Apache-2.0
// Measures how fast this worker reads memory while the other workers of the
// host read memory, too.
#ifndef RINGFLEET_WORKER_MEASURING_MEASURE_MEMORY_H_
#define RINGFLEET_WORKER_MEASURING_MEASURE_MEMORY_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// Counts the bytes that were read in each slice of time. Slices count from 0.
// Times are seconds since the start of slice 0. Not thread-safe.
class TimeSlices {
 public:
  TimeSlices(double slice_seconds, int slices)
      : slice_(slice_seconds), bytes_(slices) {}

  // Adds `bytes` that were read from `begin` to `end`. Each slice gets the part
  // of the bytes that its part of the time has.
  void Add(double begin, double end, double bytes);
  // End of the last slice.
  double end() const { return slice_ * static_cast<double>(bytes_.size()); }
  // Bytes by slice.
  const std::vector<double>& bytes() const { return bytes_; }

 private:
  const double slice_;  // Seconds.
  std::vector<double> bytes_;
};

// Returns the size of the buffers of all workers of a host together if the
// request names none: the larger of 512 MiB and 4 times `cache_bytes`, the size
// of the last-level caches. Buffers then do not fit into the caches.
uint64_t MemoryTestBytes(uint64_t cache_bytes);

// Serves Worker.MeasureMemory. Reads on `threads` new threads, so a connected
// model keeps its threads. Calls `await_start` when the buffer is ready, and
// then `cancelled` many times a second.
// Errors: those of Worker.MeasureMemory in worker.proto, except the error for a
// call that is already active. CANCELLED: `await_start` returned false or
// `cancelled` returned true.
absl::StatusOr<v1::MeasureMemoryResponse> MeasureMemory(
    const v1::MeasureMemoryRequest& request, int threads,
    absl::FunctionRef<bool()> await_start, absl::FunctionRef<bool()> cancelled);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MEASURING_MEASURE_MEMORY_H_
