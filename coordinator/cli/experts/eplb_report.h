// SPDX-License-Identifier: Apache-2.0
// A placement of experts as JSON and as a table.
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
  cluster::PlacementRequest request;  // With slots and speeds where given.
  // For GPUs that are alike; none where slots cannot be split evenly.
  std::optional<cluster::ExpertPlacement> plain;
  // For slots and speeds of the request, where it has some.
  std::optional<cluster::ExpertPlacement> uneven;
};

// {"phy2log", "log2phy", "logcnt"} of the plain placement, null where there is
// none; with an uneven one also "uneven": the same keys, "gpu_slots",
// "gpu_speeds", and of each layer the imbalance of the three placements.
Json EplbJson(const EplbResult& result);

// A row for each layer: how uneven the GPUs' loads are before and after, and
// those loads; then what it means for a step.
std::string EplbMarkdown(const EplbResult& result);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_EXPERTS_EPLB_REPORT_H_
