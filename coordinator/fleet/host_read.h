// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_FLEET_HOST_READ_H_
#define RINGFLEET_COORDINATOR_FLEET_HOST_READ_H_

#include "absl/status/statusor.h"
#include "coordinator/fleet/fleet_epoch.h"

namespace ringfleet::coordinator {

// Measures the rate at which each host reads from memory with all its workers
// at once, in GB/s of 1e9 bytes, and returns the mean over the hosts. Slows
// steps down. Errors: those of a worker, by name.
absl::StatusOr<double> MeasureHostRead(FleetEpoch& epoch);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_HOST_READ_H_
