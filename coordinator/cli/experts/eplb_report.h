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
  cluster::PlacementRequest request;  // With slots and speeds, if given.
  // Placement for equal GPUs. Nothing: the slots cannot be split evenly.
  std::optional<cluster::ExpertPlacement> plain;
  // Placement for the slots and speeds of the request. Nothing: the request has
  // none.
  std::optional<cluster::ExpertPlacement> uneven;
};

// Returns {"phy2log", "log2phy", "logcnt"} of the plain placement. Null: there
// is none. An uneven placement adds "uneven": these keys, "gpu_slots",
// "gpu_speeds", and the imbalance of the three placements in each layer.
Json EplbJson(const EplbResult& result);

// Returns a table with a row for each layer: the imbalance of the GPUs before
// and after, and their loads. Two lines below the table tell the effect on a
// step.
std::string EplbMarkdown(const EplbResult& result);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_EXPERTS_EPLB_REPORT_H_
