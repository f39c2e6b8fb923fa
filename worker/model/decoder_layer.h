// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_MODEL_DECODER_LAYER_H_
#define RINGFLEET_WORKER_MODEL_DECODER_LAYER_H_

#include "absl/status/status.h"
#include "worker/model/layer_context.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// Runs one transformer layer on the rows of a step, with two all-reduces: after
// the attention's output product and after the feed-forward part.
//   x [rows, D] f32, the residual stream, equal on all ranks of the data group;
//     updated in place, with the same bits on every rank
// `batch` may be empty if other data groups have rows. This rank then serves
// the tokens of the other groups with its experts, and does not read x.
// Errors: those of cluster::Communicator. A failed reduction names the layer.
absl::Status DecoderLayer(LayerContext& context, const LayerWeights& weights,
                          const Batch& batch, int layer, float* x);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_DECODER_LAYER_H_
