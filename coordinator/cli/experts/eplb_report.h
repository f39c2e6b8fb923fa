// SPDX-License-Identifier: Apache-2.0
// Reports a placement of experts, as JSON and as a table.
#ifndef RINGFLEET_COORDINATOR_CLI_EXPERTS_EPLB_REPORT_H_
#define RINGFLEET_COORDINATOR_CLI_EXPERTS_EPLB_REPORT_H_

#include <optional>
#include <string>

#include "cluster/placement/placement.h"
#include "coordinator/cli/experts/expert_loads.h"
#include "coordinator/cli/json_output.h"

namespace ringfleet::coordinator::cli {

struct EplbResult {
  ExpertLoads loads;
  cluster::PlacementRequest request;  // With the user's slots and speeds.
  // Placement for equal GPUs. Unset: the slots cannot be split evenly.
  std::optional<cluster::ExpertPlacement> plain;
  // Placement for the slots and speeds of the request. Unset: the request has
  // neither.
  std::optional<cluster::ExpertPlacement> uneven;
};

// Returns {"phy2log", "log2phy", "logcnt"} of the plain placement. The values
// are null if there is no plain placement. An uneven placement adds "uneven",
// an object with the three keys for the uneven placement, "gpu_slots",
// "gpu_speeds", and the imbalance of each layer under the present, the plain
// and the uneven placement.
Json EplbJson(const EplbResult& result);

// Returns a table with a row for each layer: the imbalance of the GPUs before
// and after the placement, and the GPUs' loads. Two lines below the table state
// the effect on the time of a step.
std::string EplbMarkdown(const EplbResult& result);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_EXPERTS_EPLB_REPORT_H_
