// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_MODEL_UNREAD_TENSORS_H_
#define RINGFLEET_CLUSTER_MODEL_UNREAD_TENSORS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cluster/model/model_spec.h"
#include "cluster/model/tensor_source.h"

namespace ringfleet::cluster {

// Tensors of a checkpoint that no computation reads although they belong to
// what is computed: those that the table of model_tensors.h neither has nor
// ignores. Layers from `used_layers` on are not computed. An unread tensor
// means that the model is another one than its configuration says, such as one
// with biases, or with static scales of activations. Sorted.
std::vector<std::string> FindUnreadTensors(const ModelSpec& spec,
                                           const TensorSource& source,
                                           int used_layers);

// DATA_LOSS names the first such tensor and says how many there are.
absl::Status CheckAllRead(const ModelSpec& spec, const TensorSource& source,
                          int used_layers);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_UNREAD_TENSORS_H_
