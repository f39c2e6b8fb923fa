// SPDX-License-Identifier: Apache-2.0
// The request of `plan`: a model and a fleet, from flags or files.
#ifndef RINGFLEET_COORDINATOR_CLI_PLAN_PLAN_REQUEST_H_
#define RINGFLEET_COORDINATOR_CLI_PLAN_PLAN_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planning/planner.h"
#include "coordinator/service/setting_flags.h"
#include "protos/types.pb.h"

namespace ringfleet::coordinator::cli {

// Flags as they were given. The fleet's file or a default decides what is
// unset. Units are the flags'.
struct PlanOptions {
  std::string model;
  std::string fleet;
  std::optional<int> hosts;
  std::optional<double> memory_gib;      // Of a host.
  std::optional<double> bandwidth_gbps;  // Of a host, 1e9 bytes a second.
  std::optional<double> network_gbit;    // Of a host, one direction.
  std::optional<double> latency_us;      // One way.
  std::optional<double> gops;            // Of a host, int8.
  std::optional<int> threads;            // Of a host.
  std::optional<int64_t> context;
  std::optional<int64_t> batch;
  SettingFlags settings;  // dtype, cache_type, wire.
};

struct PlanInput {
  PlanRequest request;
  std::string model;
  v1::Dtype dtype = v1::DTYPE_INT8;
  // Of the checkpoint's files where there are any; else as published.
  uint64_t checkpoint_bytes = 0;
  // What was neither given nor measured, as sentences.
  std::vector<std::string> assumptions;
};

// Reads config.json and the fleet's file, no weights.
// Errors: INVALID_ARGUMENT, NOT_FOUND: each names flag or file, value and what
// is expected.
absl::StatusOr<PlanInput> ReadPlanInput(const PlanOptions& options);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_PLAN_PLAN_REQUEST_H_
