// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_FLEET_CHECKPOINT_DIFFERENCE_H_
#define RINGFLEET_COORDINATOR_FLEET_CHECKPOINT_DIFFERENCE_H_

#include <string>

#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// Describes the first difference of two checkpoints by their facts. The first
// is a tensor that one of them lacks, or has with another dtype, shape or hash;
// else a tensor in a sampled page; else a file. Returns "" if all facts agree.
//   "model.norm.weight: bf16 [64], want f32 [64]"
//   "model.layers.3.mlp.down_proj.weight: other bytes near byte 81920 of FILE"
// `got` is compared with `want`.
std::string FindDifference(const v1::CheckpointFacts& want,
                           const v1::CheckpointFacts& got);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_CHECKPOINT_DIFFERENCE_H_
