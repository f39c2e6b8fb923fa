// SPDX-License-Identifier: Apache-2.0
// The part of a fleet that can serve without the rest.
#ifndef RINGFLEET_COORDINATOR_FLEET_SURVIVORS_H_
#define RINGFLEET_COORDINATOR_FLEET_SURVIVORS_H_

#include <vector>

#include "coordinator/fleet/fleet_epoch.h"

namespace ringfleet::coordinator {

// The data groups that miss no rank, as a smaller fleet. Its mesh has these
// groups, and their experts stay where they are.
struct Survivors {
  std::vector<int> ranks;  // Ranks of the whole fleet, ascending.
  FleetOptions options;
};

// Errors: FAILED_PRECONDITION: no group is whole, or an expert has replicas in
// the other groups only.
absl::StatusOr<Survivors> FindSurvivors(const FleetOptions& options,
                                        const std::vector<int>& missing);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_SURVIVORS_H_
