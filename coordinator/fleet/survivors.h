// SPDX-License-Identifier: Apache-2.0
// Which part of a fleet can serve without the rest.
#ifndef RINGFLEET_COORDINATOR_FLEET_SURVIVORS_H_
#define RINGFLEET_COORDINATOR_FLEET_SURVIVORS_H_

#include <vector>

#include "coordinator/fleet/fleet_epoch.h"

namespace ringfleet::coordinator {

// What the data groups without any of the ranks `missing` make of the fleet
// that `options` describes: a smaller mesh of the same groups, with the experts
// where they are.
struct Survivors {
  std::vector<int> ranks;  // Of the whole fleet, ascending.
  FleetOptions options;
};

// Errors: FAILED_PRECONDITION: no group is whole, or an expert has copies in
// the others only.
absl::StatusOr<Survivors> FindSurvivors(const FleetOptions& options,
                                        const std::vector<int>& missing);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_SURVIVORS_H_
