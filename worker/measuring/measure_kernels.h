// SPDX-License-Identifier: Apache-2.0
// Measures how fast this process's threads run the kernels of a step, without a
// model. The planner needs these rates of each host.
#ifndef RINGFLEET_WORKER_MEASURING_MEASURE_KERNELS_H_
#define RINGFLEET_WORKER_MEASURING_MEASURE_KERNELS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/thread_pool.h"
#include "protos/host.pb.h"

namespace ringfleet::worker {

// Returns the bytes of weights of all workers of a host together. The weights
// exceed `cache_bytes`, the size of the last-level caches, so products read
// memory.
uint64_t ProductTestBytes(uint64_t cache_bytes);

// Bytes of activations, queries, results and latent cache beside the weights.
inline constexpr uint64_t kMeasureScratchBytes = uint64_t{192} << 20;

// Sets `products`, `forms` and `attention` of `report` to median rates. Each of
// the three takes about `time`. Each rate has at least one pass, so long passes
// take longer. Products multiply by `weight_bytes` of weights, one matrix after
// the other, and quantise their activations each time. Asks `cancelled` before
// each rate. Requires kMeasureScratchBytes of memory. Belongs to the thread
// that owns `pool`. Errors: RESOURCE_EXHAUSTED: no memory for the weights or
// the cache. CANCELLED: `cancelled` returned true.
absl::Status MeasureKernels(kernels::ThreadPool& pool, uint64_t weight_bytes,
                            absl::Duration time,
                            absl::FunctionRef<bool()> cancelled,
                            v1::HostReport* report);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MEASURING_MEASURE_KERNELS_H_
