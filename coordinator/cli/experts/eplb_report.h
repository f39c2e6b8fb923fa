// SPDX-License-Identifier: Apache-2.0
// Reports of a placement of experts: JSON and a table.
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
  // For equal GPUs; none if slots cannot be split evenly.
  std::optional<cluster::ExpertPlacement> plain;
  // For the slots and speeds of the request; none without them.
  std::optional<cluster::ExpertPlacement> uneven;
};

// Returns {"phy2log", "log2phy", "logcnt"} of the plain placement, null without
// one. An uneven placement adds "uneven": these keys, "gpu_slots",
// "gpu_speeds", and the imbalance of the three placements in each layer.
Json EplbJson(const EplbResult& result);

// Returns a table with a row for each layer: the imbalance of the GPUs before
// and after, and their loads. Two lines below it tell the effect on a step.
std::string EplbMarkdown(const EplbResult& result);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_EXPERTS_EPLB_REPORT_H_
