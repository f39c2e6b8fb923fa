// SPDX-License-Identifier: Apache-2.0
// Reads the input of `plan`, a model and a fleet, from flags and files.
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

// Flags in the units of the command line. A value that no flag sets comes from
// the fleet's file, or is a default.
struct PlanOptions {
  std::string model;
  std::string fleet;
  std::optional<int> hosts;
  std::optional<double> memory_gib;      // Per host.
  std::optional<double> bandwidth_gbps;  // Per host, 1e9 bytes per second.
  std::optional<double> network_gbit;    // Per host, in one direction.
  std::optional<double> latency_us;      // One way.
  std::optional<double> gops;            // Per host, 1e9 int8 operations/s.
  std::optional<int> threads;            // Per host.
  std::optional<int64_t> context;
  std::optional<int64_t> batch;
  SettingFlags settings;  // dtype, cache_type, wire.
};

// The input of a plan.
struct PlanInput {
  PlanRequest request;
  std::string model;
  v1::Dtype dtype = v1::DTYPE_NATIVE;
  // Bytes of the checkpoint's files. Without files: bytes of the published
  // files.
  uint64_t checkpoint_bytes = 0;
  // Sentences about values that were neither given nor measured.
  std::vector<std::string> assumptions;
};

// Reads the model's config.json and the fleet's file. Reads no weights.
//
// Errors: INVALID_ARGUMENT, NOT_FOUND. The message names the flag or file, the
// value and the expected value.
absl::StatusOr<PlanInput> ReadPlanInput(const PlanOptions& options);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_PLAN_PLAN_REQUEST_H_
