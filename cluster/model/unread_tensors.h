// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_MODEL_UNREAD_TENSORS_H_
#define RINGFLEET_CLUSTER_MODEL_UNREAD_TENSORS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cluster/model/model_spec.h"
#include "cluster/model/tensor_source.h"

namespace ringfleet::cluster {

// Returns the sorted names of the checkpoint's unread tensors. The table of
// model_tensors.h neither has nor ignores an unread tensor. Tensors of layers
// from `used_layers` on are never unread, because these layers are not
// computed. An unread tensor means that the model differs from its
// configuration. An example is a bias.
std::vector<std::string> FindUnreadTensors(const ModelSpec& spec,
                                           const TensorSource& source,
                                           int used_layers);

// Returns the unsupported technique that a tensor's name tells of, as in
// ": biases are not supported". Returns "" for any other name.
absl::string_view UnsupportedTechnique(absl::string_view name);

// Checks that there is no unread tensor. DATA_LOSS: names the first unread
// tensor and gives their number.
absl::Status CheckAllRead(const ModelSpec& spec, const TensorSource& source,
                          int used_layers);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_UNREAD_TENSORS_H_
