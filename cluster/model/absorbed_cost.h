// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_MODEL_ABSORBED_COST_H_
#define RINGFLEET_CLUSTER_MODEL_ABSORBED_COST_H_

#include "cluster/model/model_spec.h"

namespace ringfleet::cluster {

// Returns the multiplications of a prompt of `positions` tokens whose attention
// is absorbed throughout, divided by those of the prompt whose chunks take the
// cheaper form (kernels/attention/mla.h). The prompt is evaluated in chunks of
// `chunk` tokens. Counts products with weights, and scores and sums of
// attention. Requires positions and chunk of 1 or more.
double AbsorbedCost(const ModelSpec& spec, int positions, int chunk);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_ABSORBED_COST_H_
