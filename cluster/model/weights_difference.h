// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_MODEL_WEIGHTS_DIFFERENCE_H_
#define RINGFLEET_CLUSTER_MODEL_WEIGHTS_DIFFERENCE_H_

#include <string>

#include "protos/worker.pb.h"

namespace ringfleet::cluster {

// Returns the first setting for which a worker that holds the weights of
// `held` has to load those of `wanted`: "dtype int8, held bf16". Empty: slices
// of equal weights serve both. Ranks, meshes, experts and sizes of the cache
// are not compared.
std::string WeightsDifference(const v1::LoadRequest& wanted,
                              const v1::LoadRequest& held);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_WEIGHTS_DIFFERENCE_H_
