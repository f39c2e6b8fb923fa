// SPDX-License-Identifier: Apache-2.0
// The fleet of a plan: from flags, from cluster.yaml with flags for what it
// does not say, or from what `doctor` measured.
#ifndef RINGFLEET_COORDINATOR_CLI_PLAN_PLAN_FLEET_H_
#define RINGFLEET_COORDINATOR_CLI_PLAN_PLAN_FLEET_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/config/config.h"
#include "coordinator/cli/plan/plan_request.h"
#include "coordinator/planning/step_cost.h"

namespace ringfleet::coordinator::cli {

struct PlanFleet {
  std::vector<cluster::HostSpec> hosts;  // By rank.
  NetworkSpec network;
  // Of the fleet's file, where it says so.
  std::string model;
  std::optional<cluster::ClusterConfig> config;
  std::vector<std::string> assumptions;
};

// Errors: INVALID_ARGUMENT, NOT_FOUND, as ReadPlanInput.
absl::StatusOr<PlanFleet> ReadPlanFleet(const PlanOptions& options);

// What `doctor -o json` printed: {"workers":[{"host","threads","memory_gib",
// "read_gbps","int8_gops"}],"network":{"latency_us","gbit"}}; other members
// are left alone, flags replace what was measured. With "products":[{"rows",
// "gops"}], "form_gops":{"int4","bf16","f32"} and "attention_gflops":
// {"absorbed","absorbed_16_heads","materialized"}, and where they are there
// "absorbed_f32_cache" and "materialized_f32_cache", a worker's rates are
// these, and not derived from "int8_gops", unless flags give its threads,
// memory's or products' rate. `name` appears in errors.
absl::StatusOr<PlanFleet> ParseMeasuredFleet(absl::string_view json,
                                             absl::string_view name,
                                             const PlanOptions& options);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_PLAN_PLAN_FLEET_H_
