// SPDX-License-Identifier: Apache-2.0
// Bytes that a layer must read from memory in one step. Each weight matrix
// counts once, for any number of rows. The cached rows of each sequence count
// once. A matrix still counts once if a kernel reads it twice.
#ifndef RINGFLEET_WORKER_MODEL_READ_BYTES_H_
#define RINGFLEET_WORKER_MODEL_READ_BYTES_H_

#include <cstdint>

#include "worker/model/batch.h"
#include "worker/model/layer_context.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// Returns the bytes of gate, up and down as packed, scales included.
uint64_t MlpReadBytes(const MlpWeights& weights);

// Returns the bytes of one layer's attention:
//   q_a, q_b, kv_a and o
//   the parts of kv_b and of uk_transposed that the spans of the batch need, by
//     their forms of attention (kernels/attention/mla.h)
//   the cached rows that the spans attend to
uint64_t AttentionReadBytes(const LayerContext& context,
                            const AttentionWeights& weights,
                            const Batch& batch);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_READ_BYTES_H_
