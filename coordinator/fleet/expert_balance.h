// SPDX-License-Identifier: Apache-2.0
// Proposes coordinates of experts by their load: runs
// cluster/placement/placement for the coordinates on a mesh's data and expert
// axes, and counts the bytes to move. The tensor ranks of a coordinate share
// its experts.
#ifndef RINGFLEET_COORDINATOR_FLEET_EXPERT_BALANCE_H_
#define RINGFLEET_COORDINATOR_FLEET_EXPERT_BALANCE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cluster/model/expert_layout.h"
#include "cluster/placement/placement.h"

namespace ringfleet::coordinator {

// Facts of a model and its fleet, for balancing. No layers: nothing to balance.
struct ExpertFacts {
  std::vector<int> layers;  // Layers with experts; not the MTP layer.
  int num_layers = 0;       // All layers, with room for the MTP layer.
  bool mtp = false;         // The model has the MTP layer, which is the last.
  int num_experts = 0;
  int num_groups = 1;  // As the router limits its choice.
  int num_coordinates = 1;
  // One expert, packed, over the ranks of a coordinate.
  uint64_t expert_bytes = 0;
  // Replicas that each coordinate holds in a layer: at least one, and
  // num_experts or more in all.
  std::vector<int> coordinate_replicas;
  std::vector<double> coordinate_memory;  // In any unit; empty: all are equal.
  std::vector<float> coordinate_speeds;   // In any unit; empty: all are equal.
};

// Deals `slots` replicas out to coordinates as evenly as integers allow, or in
// proportion to `memory` [coordinates] unless it is empty.
// Errors: INVALID_ARGUMENT: fewer slots than experts, or more slots than a
// coordinate can use.
absl::StatusOr<std::vector<int>> DealReplicas(int slots, int num_experts,
                                              int num_coordinates,
                                              absl::Span<const double> memory);

// Returns the time of an expert that gets `tokens` in an average step, in
// tokens. The larger of two times counts: of its products, and of reading the
// expert in steps that use it.
double ExpectedCost(double tokens);

// Returns the time of the busiest coordinate over the time if all coordinates
// ended together. Tokens are dealt out to replicas as workers do it. 1: no
// cost.
//   costs [experts]
double Imbalance(const cluster::ExpertLayout& layout, int layer,
                 absl::Span<const double> costs);

struct BalancedLayer {
  int layer = 0;
  double before = 1;  // Imbalance.
  double after = 1;
  int loaded = 0;  // Replicas that coordinates have to load.
};

struct BalanceProposal {
  cluster::ExpertLayout layout;
  std::vector<BalancedLayer> layers;
  // Imbalance of the sum over layers: each layer waits for its slowest
  // coordinate.
  double before = 1;
  double after = 1;
  uint64_t bytes_to_load = 0;
};

// Places experts anew by PlaceExperts. A second replica of an expert at one
// coordinate gives way to another expert. The replicas of a coordinate have no
// order, and equal coordinates are exchanged for each other, so that as little
// as possible is loaded.
//   tokens: for each of facts.layers, [experts] tokens of an average step
//   nodes: hosts with equal numbers of consecutive coordinates, for the
//     hierarchical policy
// A layer without tokens, or without a gain, stays as it is.
//
// Errors: INVALID_ARGUMENT: those of PlaceExperts.
absl::StatusOr<BalanceProposal> ProposeLayout(
    const ExpertFacts& facts, const cluster::ExpertLayout& now,
    const std::vector<std::vector<double>>& tokens,
    cluster::PlacementPolicy policy, int nodes);

// Returns the layout before any load is known, the MTP layer included: each
// expert once, consecutive experts together, and spare replicas as for equal
// loads.
absl::StatusOr<cluster::ExpertLayout> InitialLayout(const ExpertFacts& facts);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_EXPERT_BALANCE_H_
