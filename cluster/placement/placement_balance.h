// SPDX-License-Identifier: Apache-2.0
// How evenly a placement of experts spreads a load over GPUs.
#ifndef RINGFLEET_CLUSTER_PLACEMENT_PLACEMENT_BALANCE_H_
#define RINGFLEET_CLUSTER_PLACEMENT_PLACEMENT_BALANCE_H_

#include <vector>

#include "absl/types/span.h"
#include "cluster/placement/placement.h"

namespace ringfleet::cluster {

// Experts in order, one copy each, on GPUs as evenly as integers allow: what a
// fleet without placement has. GPU g has experts [g E / P, (g + 1) E / P).
ExpertPlacement ContiguousPlacement(int num_layers, int num_experts,
                                    int num_gpus);

// [num_gpus] load of each GPU in one layer, when the copies of an expert share
// its load evenly. `loads` [num_experts] are that layer's.
std::vector<double> GpuLoads(const ExpertPlacement& placement, int layer,
                             absl::Span<const float> loads);

// The largest load / speed of a GPU, relative to a load that is spread in
// proportion to speed: 1 is balanced. `speeds` [num_gpus], or empty: all are
// alike. 1 without any load.
double Imbalance(absl::Span<const double> gpu_loads,
                 absl::Span<const float> speeds);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PLACEMENT_PLACEMENT_BALANCE_H_
