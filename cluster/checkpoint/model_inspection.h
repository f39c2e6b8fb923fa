// SPDX-License-Identifier: Apache-2.0
// Compares the tensors of a checkpoint with the tensors that its configuration
// requires. Reads headers only.
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
  uint64_t parameters = 0;
  uint64_t bytes = 0;
};

struct ModelInspection {
  // Required tensors that the checkpoint has, indexed by WeightClass. Scales of
  // codes add to tensors and bytes, but not to parameters.
  std::array<TensorTally, kNumWeightClasses> classes = {};
  // All tensors that are not required.
  TensorTally unexpected_tally;
  // The tensors among them that no computation needs, by the reason
  // (SkipReason).
  std::map<std::string, TensorTally> skipped;
  // All tensors, by dtype.
  std::map<std::string, TensorTally> dtypes;
  // All tensors, by file name. Headers are not counted.
  std::map<std::string, TensorTally> files;
  // Sorted names of required tensors that the checkpoint lacks.
  std::vector<std::string> missing;
  // Sorted faults of tensors: "NAME: shape [1, 2], want [3, 4]". Each unread
  // tensor (unread_tensors.h) is a fault.
  std::vector<std::string> wrong;
  // Sorted names of tensors that are not required.
  std::vector<std::string> unexpected;
  // True if the checkpoint has a tensor of a multi-token prediction layer. If
  // false, these layers are not required, because generation does not need
  // them.
  bool has_mtp = false;
  // Returns true if a worker can load the checkpoint, as far as headers tell.
  bool ok() const { return missing.empty() && wrong.empty(); }
};
ModelInspection InspectModel(const ModelSpec& spec, const TensorSource& source);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_MODEL_INSPECTION_H_
