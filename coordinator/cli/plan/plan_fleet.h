// SPDX-License-Identifier: Apache-2.0
// Reads the fleet of a plan from flags, from a cluster file and flags, or from
// the findings of `doctor` and flags.
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
  std::string model;  // The fleet file's. Empty: the file has none.
  std::optional<cluster::ClusterConfig> config;  // Set for a cluster file.
  std::vector<std::string> assumptions;          // As for PlanInput.
};

// Returns the fleet of the flags, or of the file that --fleet names.
// Errors: INVALID_ARGUMENT and NOT_FOUND, as for ReadPlanInput.
absl::StatusOr<PlanFleet> ReadPlanFleet(const PlanOptions& options);

// Parses the output of `doctor -o json`:
// {"workers":[{"host","threads","memory_gib",
// "read_gbps","int8_gops"}],"network":{"latency_us","gbit"}}. Other members are
// ignored. Flags replace measured values. A worker may have measured rates:
// "products":[{"rows","gops"}], "form_gops":{"int4","bf16","f32"} and
// "attention_gflops":{"absorbed","absorbed_16_heads","materialized",
// "absorbed_f32_cache","materialized_f32_cache"}. The last two rates are
// optional. Measured rates replace rates that are derived from "int8_gops",
// unless flags set the number of threads, the rate of memory or the rate of
// products. Error messages begin with `name`.
absl::StatusOr<PlanFleet> ParseMeasuredFleet(absl::string_view json,
                                             absl::string_view name,
                                             const PlanOptions& options);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_PLAN_PLAN_FLEET_H_
