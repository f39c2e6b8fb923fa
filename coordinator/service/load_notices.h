// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_SERVICE_LOAD_NOTICES_H_
#define RINGFLEET_COORDINATOR_SERVICE_LOAD_NOTICES_H_

#include <string>
#include <vector>

#include "cluster/model/model_spec.h"
#include "protos/fleet_settings.pb.h"

namespace ringfleet::coordinator {

// Returns what a fleet of this model and these settings tells its user once at
// the load: the price of `reproducible` in multiplications, and how far dense
// attention replaces the sparse one of the model. One line without a newline
// for each fact; empty if there is none.
std::vector<std::string> LoadNotices(const cluster::ModelSpec& spec,
                                     const v1::FleetSettings& settings);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SERVICE_LOAD_NOTICES_H_
