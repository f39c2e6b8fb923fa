// SPDX-License-Identifier: Apache-2.0
// Counts the parameters and bytes of a published checkpoint, by the table of
// model_tensors.h.
#ifndef RINGFLEET_CLUSTER_MODEL_PUBLISHED_SIZES_H_
#define RINGFLEET_CLUSTER_MODEL_PUBLISHED_SIZES_H_

#include <cstdint>

#include "cluster/model/model_spec.h"
#include "cluster/model/model_tensors.h"

namespace ringfleet::cluster {

struct CheckpointSizes {
  // Indexed by WeightClass.
  uint64_t parameters[kNumWeightClasses] = {};  // Scales are not counted.
  uint64_t bytes[kNumWeightClasses] = {};       // In files; scales are counted.
  uint64_t scales = 0;                          // Number of scales.
  // Returns the parameters of all classes but kMtp.
  uint64_t main_parameters() const;
  // Returns the bytes of all classes.
  uint64_t all_bytes() const;
};
// Returns the sizes of the published form: fp8 blocks with float32 scales if
// config.json has blocks, else bf16. Router biases are float32. Headers of
// files are not counted.
CheckpointSizes PublishedSizes(const ModelSpec& spec);

// Returns main_parameters() of PublishedSizes: the parameters as usually
// counted (R1: 671 B). A tied head, multi-token prediction layers and scales
// are not counted.
uint64_t CountParameters(const ModelSpec& spec);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_PUBLISHED_SIZES_H_
