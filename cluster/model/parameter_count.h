// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_MODEL_PARAMETER_COUNT_H_
#define RINGFLEET_CLUSTER_MODEL_PARAMETER_COUNT_H_

#include <cstdint>

#include "cluster/model/model_spec.h"

namespace ringfleet::cluster {

// Weights of the model by its dimensions: embedding, head (unless tied), norms,
// routers with their biases, all experts. Without multi-token prediction
// layers and without scales, as models are usually counted (R1: 671 B).
uint64_t CountParameters(const ModelSpec& spec);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_PARAMETER_COUNT_H_
