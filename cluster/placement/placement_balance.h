// SPDX-License-Identifier: Apache-2.0
// How evenly a placement of experts spreads a load over GPUs.
#ifndef RINGFLEET_CLUSTER_PLACEMENT_PLACEMENT_BALANCE_H_
#define RINGFLEET_CLUSTER_PLACEMENT_PLACEMENT_BALANCE_H_

#include <vector>

#include "absl/types/span.h"
#include "cluster/placement/placement.h"

namespace ringfleet::cluster {

// Returns the placement of a fleet that chooses none: experts in order, one
// copy each. GPU g has experts [g E / P, (g + 1) E / P).
ExpertPlacement ContiguousPlacement(int num_layers, int num_experts,
                                    int num_gpus);

// Returns the load of each GPU [num_gpus] in one layer. The copies of an expert
// share its load evenly. `loads` [num_experts] are the layer's.
std::vector<double> GpuLoads(const ExpertPlacement& placement, int layer,
                             absl::Span<const float> loads);

// Returns the largest load / speed of a GPU, relative to a load that is spread
// in proportion to speed. 1: balanced, or no load. `speeds` [num_gpus]; empty:
// all are alike.
double Imbalance(absl::Span<const double> gpu_loads,
                 absl::Span<const float> speeds);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PLACEMENT_PLACEMENT_BALANCE_H_
