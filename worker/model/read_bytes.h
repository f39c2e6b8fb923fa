// SPDX-License-Identifier: Apache-2.0
// What a layer needs from memory in one step: each weight matrix once, however
// many rows it is multiplied with, and each sequence's cached rows once. It is
// the least that must be read where a step is larger than the caches; kernels
// that read something twice are slower, not credited with more.
#ifndef RINGFLEET_WORKER_MODEL_READ_BYTES_H_
#define RINGFLEET_WORKER_MODEL_READ_BYTES_H_

#include <cstdint>

#include "worker/model/batch.h"
#include "worker/model/layer_context.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// Packed bytes of the three products, scales included.
uint64_t MlpReadBytes(const MlpWeights& weights);

// Of the products that make queries and latents and of the output product; of
// what expands heads, by the forms that the spans of the batch take
// (kernels/attention/mla.h); of the rows of one layer's cache that they attend
// to.
uint64_t AttentionReadBytes(const LayerContext& context,
                            const AttentionWeights& weights,
                            const Batch& batch);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_READ_BYTES_H_
