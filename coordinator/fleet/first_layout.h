// SPDX-License-Identifier: Apache-2.0
// Where the experts of a fleet begin: where workers already hold them, if a
// coordinator that has gone left them loaded.
#ifndef RINGFLEET_COORDINATOR_FLEET_FIRST_LAYOUT_H_
#define RINGFLEET_COORDINATOR_FLEET_FIRST_LAYOUT_H_

#include <optional>
#include <string>
#include <vector>

#include "cluster/model/expert_layout.h"
#include "coordinator/fleet/expert_balance.h"
#include "coordinator/fleet/fleet_options.h"
#include "coordinator/membership/membership.h"

namespace ringfleet::coordinator {

struct FirstLayout {
  cluster::ExpertLayout layout;
  // The setting for which workers load experts that they hold elsewhere:
  // "expert slots 24, workers hold 32". Empty: none does.
  std::string why_not;
};

// Returns the layout of fleet.layout's sizes and speeds in which most members
// keep their weights. `members` has all ranks, in order. Only members that hold
// weights of the fleet's settings count. They may disagree, as after a move
// that reached some of them: between equal layouts the one of the latest epoch
// counts, and fleet.layout last. A reproducible fleet begins with fleet.layout,
// and a fleet whose settings give a number of expert slots with that number.
FirstLayout ChooseFirstLayout(const FleetOptions& fleet,
                              const std::vector<Member>& members);

// Returns the replicas that each coordinate holds in every layer with experts.
// Nothing: layers differ.
std::optional<std::vector<int>> ReplicasIn(const cluster::ExpertLayout& layout,
                                           const ExpertFacts& facts);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_FIRST_LAYOUT_H_
