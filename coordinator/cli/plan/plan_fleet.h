// SPDX-License-Identifier: Apache-2.0
// The fleet of a plan: from flags, from a cluster file and flags, or from the
// findings of `doctor`.
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
  // From the fleet's file; empty if it has none.
  std::string model;
  std::optional<cluster::ClusterConfig> config;
  std::vector<std::string> assumptions;
};

// Errors: INVALID_ARGUMENT, NOT_FOUND, as for ReadPlanInput.
absl::StatusOr<PlanFleet> ReadPlanFleet(const PlanOptions& options);

// Parses the output of `doctor -o json`:
// {"workers":[{"host","threads","memory_gib",
// "read_gbps","int8_gops"}],"network":{"latency_us","gbit"}}. Other members are
// ignored, and flags replace measured values. A worker may have measured rates:
// "products":[{"rows","gops"}], "form_gops":{"int4","bf16","f32"} and
// "attention_gflops":{"absorbed","absorbed_16_heads","materialized",
// "absorbed_f32_cache","materialized_f32_cache"}, the last two optional. These
// rates are used instead of rates derived from "int8_gops", unless flags give
// the threads, the memory's or the products' rate. `name` appears in errors.
absl::StatusOr<PlanFleet> ParseMeasuredFleet(absl::string_view json,
                                             absl::string_view name,
                                             const PlanOptions& options);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_PLAN_PLAN_FLEET_H_
