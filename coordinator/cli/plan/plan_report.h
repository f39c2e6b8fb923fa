// SPDX-License-Identifier: Apache-2.0
// Reports of a plan: JSON and Markdown.
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
  std::vector<TableCell> table;
};

// Computes the plan, and the table over 1 to 64 hosts.
PlanResult ComputePlan(const PlanInput& input);

Json PlanJson(const PlanInput& input, const PlanResult& result);
// `explain` appends the cost model behind the predictions.
std::string PlanMarkdown(const PlanInput& input, const PlanResult& result,
                         bool explain);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_PLAN_PLAN_REPORT_H_
