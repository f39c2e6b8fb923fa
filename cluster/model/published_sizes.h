// SPDX-License-Identifier: Apache-2.0
// Numbers and bytes of a published checkpoint, by the table of model_tensors.h.
#ifndef RINGFLEET_CLUSTER_MODEL_PUBLISHED_SIZES_H_
#define RINGFLEET_CLUSTER_MODEL_PUBLISHED_SIZES_H_

#include <cstdint>

#include "cluster/model/model_spec.h"
#include "cluster/model/model_tensors.h"

namespace ringfleet::cluster {

struct CheckpointSizes {
  // By WeightClass.
  uint64_t parameters[kNumWeightClasses] = {};  // Without scales.
  uint64_t bytes[kNumWeightClasses] = {};       // In files, with scales.
  uint64_t scales = 0;                          // Numbers, not parameters.
  // All of the main model, as models are usually counted.
  uint64_t main_parameters() const;
  uint64_t all_bytes() const;  // MTP layers and their copies included.
};
// As published: fp8 blocks with float32 scales where the configuration names
// blocks, else bf16; routers' biases float32. Without headers' bytes.
CheckpointSizes PublishedSizes(const ModelSpec& spec);

// Weights of the model: embedding, head (unless tied), norms, routers with
// their biases, all experts. Without multi-token prediction layers and without
// scales, as models are usually counted (R1: 671 B).
uint64_t CountParameters(const ModelSpec& spec);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_PUBLISHED_SIZES_H_
