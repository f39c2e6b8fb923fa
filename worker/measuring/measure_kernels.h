// SPDX-License-Identifier: Apache-2.0
// How fast this process's threads do what a step consists of, without a model:
// what a plan needs to know of a host.
#ifndef RINGFLEET_WORKER_MEASURING_MEASURE_KERNELS_H_
#define RINGFLEET_WORKER_MEASURING_MEASURE_KERNELS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/thread_pool.h"
#include "protos/host.pb.h"

namespace ringfleet::worker {

// Bytes of weights that all workers of a host multiply by together: more than
// its last-level caches hold, so that products read memory.
uint64_t ProductTestBytes(uint64_t cache_bytes);

// What activations, queries and results take beside the weights, and the cache
// of latents behind them.
inline constexpr uint64_t kMeasureScratchBytes = uint64_t{192} << 20;

// Fills in `products`, `forms` and `attention` with median rates over about
// `time` each for products, forms and attention: longer where single passes
// are, of which there is at least one for each rate, and a few where they take
// seconds together. Products are of `weight_bytes` of weights, one matrix after
// the other, whose activations are quantised anew each time. Asks `cancelled`
// before each rate. Requires kMeasureScratchBytes of memory.
// Errors: RESOURCE_EXHAUSTED: no memory for the weights or the cache;
// CANCELLED.
absl::Status MeasureKernels(kernels::ThreadPool& pool, uint64_t weight_bytes,
                            absl::Duration time,
                            absl::FunctionRef<bool()> cancelled,
                            v1::HostReport* report);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MEASURING_MEASURE_KERNELS_H_
