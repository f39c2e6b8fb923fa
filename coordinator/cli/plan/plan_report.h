// SPDX-License-Identifier: Apache-2.0
// Reports a plan as JSON and as Markdown.
#ifndef RINGFLEET_COORDINATOR_CLI_PLAN_PLAN_REPORT_H_
#define RINGFLEET_COORDINATOR_CLI_PLAN_PLAN_REPORT_H_

#include <string>
#include <vector>

#include "coordinator/cli/json_output.h"
#include "coordinator/cli/plan/plan_request.h"
#include "coordinator/planning/planner.h"

namespace ringfleet::coordinator::cli {

struct PlanResult {
  FleetPlan plan;
  std::vector<TableCell> table;  // For 1 to 64 hosts.
};

// Returns the plan of `input` and its table.
PlanResult ComputePlan(const PlanInput& input);

// Return the report. `explain` appends the cost model to the Markdown.
Json PlanJson(const PlanInput& input, const PlanResult& result);
std::string PlanMarkdown(const PlanInput& input, const PlanResult& result,
                         bool explain);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_PLAN_PLAN_REPORT_H_
