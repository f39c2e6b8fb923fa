// SPDX-License-Identifier: Apache-2.0
// Bytes that a layer needs from memory in one step: each weight matrix once,
// however many rows it multiplies, and each sequence's cached rows once. A step
// larger than the caches cannot read less. Kernels that read a matrix twice are
// slower; they are not credited with more bytes.
#ifndef RINGFLEET_WORKER_MODEL_READ_BYTES_H_
#define RINGFLEET_WORKER_MODEL_READ_BYTES_H_

#include <cstdint>

#include "worker/model/batch.h"
#include "worker/model/layer_context.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// Returns the packed bytes of gate, up and down, scales included.
uint64_t MlpReadBytes(const MlpWeights& weights);

// Returns the bytes of an attention layer: the products of queries, latents and
// output, the matrices that expand heads, by the forms of attention that the
// spans of the batch take (kernels/attention/mla.h), and the rows of one
// layer's cache that the spans attend to.
uint64_t AttentionReadBytes(const LayerContext& context,
                            const AttentionWeights& weights,
                            const Batch& batch);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_READ_BYTES_H_
