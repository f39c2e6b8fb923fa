// SPDX-License-Identifier: Apache-2.0
// Measures how fast the threads of this process run the kernels of a step.
// Needs no model. The planner computes with the rates of each host.
#ifndef RINGFLEET_WORKER_MEASURING_MEASURE_KERNELS_H_
#define RINGFLEET_WORKER_MEASURING_MEASURE_KERNELS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/thread_pool.h"
#include "protos/host.pb.h"

namespace ringfleet::worker {

// Returns the bytes of weights that all workers of a host need together for the
// measurement. The weights exceed `cache_bytes`, the size of the last-level
// caches, so products read memory.
uint64_t ProductTestBytes(uint64_t cache_bytes);

// Bytes that MeasureKernels needs besides the weights: for activations,
// queries, results and latent cache.
inline constexpr uint64_t kMeasureScratchBytes = uint64_t{192} << 20;

// Sets `products`, `forms` and `attention` of `report` to median rates. Takes
// about `time` for each of the three fields, and more if a single pass takes
// longer. Products multiply by one matrix after the other, `weight_bytes` bytes
// in all, and quantise their activations for each product. Calls `cancelled`
// before each rate. Requires kMeasureScratchBytes of memory. Call it on the
// thread that owns `pool`.
// Errors: RESOURCE_EXHAUSTED: no memory for the weights or the cache.
// CANCELLED: `cancelled` returned true.
absl::Status MeasureKernels(kernels::ThreadPool& pool, uint64_t weight_bytes,
                            absl::Duration time,
                            absl::FunctionRef<bool()> cancelled,
                            v1::HostReport* report);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MEASURING_MEASURE_KERNELS_H_
