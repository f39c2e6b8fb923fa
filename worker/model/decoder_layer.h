// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_MODEL_DECODER_LAYER_H_
#define RINGFLEET_WORKER_MODEL_DECODER_LAYER_H_

#include "absl/status/status.h"
#include "worker/model/layer_context.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// One transformer layer over a step's tokens, with two all-reduces: after the
// attention's output product and after the feed-forward part.
//   x [rows, D] f32, the residual stream, replicated; updated in place with
//     the same bits on every rank
// Errors: those of cluster::Communicator::AllReduce, with the layer named.
absl::Status DecoderLayer(LayerContext& context, const LayerWeights& weights,
                          const Batch& batch, int layer, float* x);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_DECODER_LAYER_H_
