// SPDX-License-Identifier: Apache-2.0
// --timeout and --priority of a job.
#ifndef RINGFLEET_COORDINATOR_CLI_RUN_JOB_OPTIONS_H_
#define RINGFLEET_COORDINATOR_CLI_RUN_JOB_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace ringfleet::coordinator::cli {

struct JobSettings {
  std::string timeout;  // Empty: none.
  int32_t priority = 0;
};

void AddJobOptions(CLI::App& app, JobSettings& options);

// Returns the milliseconds of "30", "30s" or "1h30m", a number being seconds; 0
// for an empty text. INVALID_ARGUMENT: another text, or no time at all.
absl::StatusOr<uint32_t> TimeoutMs(const std::string& timeout);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_RUN_JOB_OPTIONS_H_
