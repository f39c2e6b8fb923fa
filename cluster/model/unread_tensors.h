// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_MODEL_UNREAD_TENSORS_H_
#define RINGFLEET_CLUSTER_MODEL_UNREAD_TENSORS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cluster/model/model_spec.h"
#include "cluster/model/tensor_source.h"

namespace ringfleet::cluster {

// Returns the sorted names of tensors that belong to computed layers but that
// no computation reads: the table of model_tensors.h neither has nor ignores
// such a tensor. Layers from `used_layers` on are not computed. An unread
// tensor means that the model differs from its configuration, such as a model
// with biases, or with static scales of activations.
std::vector<std::string> FindUnreadTensors(const ModelSpec& spec,
                                           const TensorSource& source,
                                           int used_layers);

// Checks that FindUnreadTensors finds none. Errors: DATA_LOSS names the first
// unread tensor and says how many there are.
absl::Status CheckAllRead(const ModelSpec& spec, const TensorSource& source,
                          int used_layers);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_UNREAD_TENSORS_H_
