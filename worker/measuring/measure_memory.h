// SPDX-License-Identifier: Apache-2.0
// How fast this worker reads memory while its neighbours do the same.
#ifndef RINGFLEET_WORKER_MEASURING_MEASURE_MEMORY_H_
#define RINGFLEET_WORKER_MEASURING_MEASURE_MEMORY_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// Bytes by time: what is read in a while counts for the slices of time that
// the while overlaps, in proportion. Times are seconds since the first slice
// began.
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

// Bytes that all workers of a host read together, unless the request says how
// many: no cache holds them. 512 MiB, or four times the last-level caches
// where those are larger.
uint64_t MemoryTestBytes(uint64_t cache_bytes);

// Serves Worker.MeasureMemory with `threads` threads of its own, so that a
// connected model's are left alone. `await_start` is called when the buffer is
// ready, and `cancelled` many times a second afterwards: CANCELLED when the
// caller has gone. Errors: of the service, but for one that is active.
absl::StatusOr<v1::MeasureMemoryResponse> MeasureMemory(
    const v1::MeasureMemoryRequest& request, int threads,
    absl::FunctionRef<bool()> await_start, absl::FunctionRef<bool()> cancelled);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MEASURING_MEASURE_MEMORY_H_
