// SPDX-License-Identifier: Apache-2.0
// Where experts should be, by what they have had to do:
// cluster/placement/placement for the places of a mesh's data and expert axes,
// and what getting there takes.
#ifndef RINGFLEET_COORDINATOR_FLEET_EXPERT_BALANCE_H_
#define RINGFLEET_COORDINATOR_FLEET_EXPERT_BALANCE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cluster/model/expert_layout.h"
#include "cluster/placement/placement.h"

namespace ringfleet::coordinator {

// What balancing needs to know of a model and its fleet. Without layers there
// is nothing to balance.
struct ExpertFacts {
  std::vector<int> layers;  // With experts; not the MTP layer.
  int num_layers = 0;       // All of them, the MTP layer's place included.
  bool mtp = false;         // The last of them is there.
  int num_experts = 0;
  int num_groups = 1;  // As the router limits its choice.
  int num_places = 1;
  uint64_t expert_bytes = 0;  // Of one expert, packed, over its place's ranks.
  // Physical slots of a layer: of each place, at least one, num_experts or more
  // in all.
  std::vector<int> place_slots;
  std::vector<double> place_memory;  // In any unit; empty: all have the same.
  std::vector<float> place_speeds;   // The same.
};

// `slots` in all, dealt out to places as evenly as integers allow, or in
// proportion to `memory` [places] where that is not empty.
// Errors: INVALID_ARGUMENT: fewer than experts, or more than a place can use.
absl::StatusOr<std::vector<int>> DealSlots(int slots, int num_experts,
                                           int num_places,
                                           absl::Span<const double> memory);

// The time of an expert that gets `tokens` in an average step, in tokens: those
// that it multiplies, or what reading it takes in the steps that have any.
double ExpectedCost(double tokens);

// The time of the busiest place over what it would be if all ended together,
// where tokens are dealt out to copies as workers do it. 1 without any cost.
//   costs [experts]
double Imbalance(const cluster::ExpertLayout& layout, int layer,
                 absl::Span<const double> costs);

struct BalancedLayer {
  int layer = 0;
  double before = 1;  // Imbalance.
  double after = 1;
  int loaded = 0;  // Experts that places have to load.
};

struct BalanceProposal {
  cluster::ExpertLayout layout;
  std::vector<BalancedLayer> layers;
  // Of the sum over layers, since each layer waits for its slowest place.
  double before = 1;
  double after = 1;
  uint64_t bytes_to_load = 0;
};

// Places experts anew, by PlaceExperts; slots that it would fill with a second
// copy for the same place get others. Slots of a place are in no order, and
// places that are alike are exchanged for each other, so that as little as
// possible is loaded.
//   tokens: of each of facts.layers, [experts] tokens of an average step
//   nodes: hosts of equally many consecutive places; for the hierarchical
//   policy
// A layer that no token has come to, or that would not gain, stays as it is.
//
// Errors: INVALID_ARGUMENT: those of PlaceExperts.
absl::StatusOr<BalanceProposal> ProposeLayout(
    const ExpertFacts& facts, const cluster::ExpertLayout& now,
    const std::vector<std::vector<double>>& tokens,
    cluster::PlacementPolicy policy, int nodes);

// Where experts are before anything is known of them, those of the MTP layer
// too: each once and consecutive ones together, and spare slots filled as for
// equal loads.
absl::StatusOr<cluster::ExpertLayout> InitialLayout(const ExpertFacts& facts);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_EXPERT_BALANCE_H_
