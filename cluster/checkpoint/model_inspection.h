// SPDX-License-Identifier: Apache-2.0
// Compares the tensors of a checkpoint with the tensors that its configuration
// asks for. Reads headers only.
#ifndef RINGFLEET_CLUSTER_CHECKPOINT_MODEL_INSPECTION_H_
#define RINGFLEET_CLUSTER_CHECKPOINT_MODEL_INSPECTION_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cluster/model/model_spec.h"
#include "cluster/model/model_tensors.h"
#include "cluster/model/tensor_source.h"

namespace ringfleet::cluster {

struct TensorTally {
  uint64_t tensors = 0;
  uint64_t parameters = 0;  // Without the scales of fp8 blocks.
  uint64_t bytes = 0;       // With them.
};

struct ModelInspection {
  // By WeightClass, of tensors that the configuration asks for.
  std::array<TensorTally, kNumWeightClasses> classes = {};
  TensorTally unexpected_tally;
  std::map<std::string, TensorTally> dtypes;  // All tensors.
  std::map<std::string, TensorTally> files;   // By name; data, not headers.
  // All sorted.
  std::vector<std::string> missing;  // Names.
  // "NAME: shape [1, 2], want [3, 4]". Unread tensors (unread_tensors.h) are
  // here and in `unexpected`.
  std::vector<std::string> wrong;
  std::vector<std::string> unexpected;  // Names.
  // True: the checkpoint has a tensor of a multi-token prediction layer.
  // Otherwise these layers are not asked for, because generation does not need
  // them.
  bool has_mtp = false;
  // True: a worker can load the checkpoint, as far as headers tell.
  bool ok() const { return missing.empty() && wrong.empty(); }
};
ModelInspection InspectModel(const ModelSpec& spec, const TensorSource& source);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_MODEL_INSPECTION_H_
