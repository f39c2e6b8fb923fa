// SPDX-License-Identifier: Apache-2.0
// The nodes, groups, GPUs and slots that a fleet offers to experts.
#ifndef RINGFLEET_CLUSTER_PLACEMENT_PLACEMENT_LAYOUT_H_
#define RINGFLEET_CLUSTER_PLACEMENT_PLACEMENT_LAYOUT_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cluster/placement/placement.h"

namespace ringfleet::cluster {

// A container of items: a node for groups, a GPU for replicas.
struct Pack {
  int capacity = 0;  // Items.
  float speed = 1;   // Relative to the fastest GPU; the sum for a node.
};

struct NodeLayout {
  int num_groups = 0;
  int num_slots = 0;
  std::vector<Pack> gpus;
  std::vector<int> gpu_first_slots;  // Counted over the fleet.
};

struct FleetLayout {
  int group_size = 0;  // Experts.
  int num_groups = 0;
  bool hierarchical = false;
  std::vector<NodeLayout> nodes;
  std::vector<Pack> node_packs;
};

// Gives nodes groups in proportion to their slots. Under the global policy one
// node has all experts as one group.
// Errors: INVALID_ARGUMENT: a request that PlaceExperts refuses.
absl::StatusOr<FleetLayout> MakeFleetLayout(int num_experts,
                                            const PlacementRequest& request);

// Splits `total` slots over GPUs in proportion to their memory, at least one
// each. Each GPU gets the whole part of its proportion. The rest goes one by
// one to the largest fractions.
// Errors: INVALID_ARGUMENT: fewer slots than GPUs, or memory that is not a
// positive number.
absl::StatusOr<std::vector<int>> SlotsByMemory(int total,
                                               absl::Span<const double> memory);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PLACEMENT_PLACEMENT_LAYOUT_H_
