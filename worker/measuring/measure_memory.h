// SPDX-License-Identifier: Apache-2.0
// Measures how fast this worker reads memory while the other workers of the
// host do the same.
#ifndef RINGFLEET_WORKER_MEASURING_MEASURE_MEMORY_H_
#define RINGFLEET_WORKER_MEASURING_MEASURE_MEMORY_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// Counts bytes by slice of time. Bytes that were read over several slices are
// divided among them in proportion. Times are seconds since the start of the
// first slice. Not thread-safe.
class TimeSlices {
 public:
  TimeSlices(double slice_seconds, int slices)
      : slice_(slice_seconds), bytes_(slices) {}

  void Add(double begin, double end, double bytes);
  double end() const { return slice_ * static_cast<double>(bytes_.size()); }
  const std::vector<double>& bytes() const { return bytes_; }

 private:
  const double slice_;
  std::vector<double> bytes_;
};

// Returns the bytes that all workers of a host read together when the request
// does not say: 512 MiB, or four times the last-level caches if that is more.
// No cache holds them.
uint64_t MemoryTestBytes(uint64_t cache_bytes);

// Serves Worker.MeasureMemory on `threads` threads of its own, so a connected
// model keeps its threads. Calls `await_start` when the buffer is ready, and
// then `cancelled` many times a second. Errors: CANCELLED: `await_start`
// returned false or `cancelled` true. The others of Worker.MeasureMemory in
// worker.proto, except the one for a call that is already active.
absl::StatusOr<v1::MeasureMemoryResponse> MeasureMemory(
    const v1::MeasureMemoryRequest& request, int threads,
    absl::FunctionRef<bool()> await_start, absl::FunctionRef<bool()> cancelled);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MEASURING_MEASURE_MEMORY_H_
