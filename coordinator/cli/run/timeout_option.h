// SPDX-License-Identifier: Apache-2.0
// --timeout, the limit for a job.
#ifndef RINGFLEET_COORDINATOR_CLI_RUN_TIMEOUT_OPTION_H_
#define RINGFLEET_COORDINATOR_CLI_RUN_TIMEOUT_OPTION_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace ringfleet::coordinator::cli {

void AddTimeoutOption(CLI::App& app, std::string& timeout);

// Returns the milliseconds of "30", "30s" or "1h30m", a number being seconds; 0
// for an empty text. INVALID_ARGUMENT: another text, or no time at all.
absl::StatusOr<uint32_t> TimeoutMs(const std::string& timeout);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_RUN_TIMEOUT_OPTION_H_
