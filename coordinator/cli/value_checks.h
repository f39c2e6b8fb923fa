// SPDX-License-Identifier: Apache-2.0
// What CLI11 lets through and no option means.
#ifndef RINGFLEET_COORDINATOR_CLI_VALUE_CHECKS_H_
#define RINGFLEET_COORDINATOR_CLI_VALUE_CHECKS_H_

#include <CLI/CLI.hpp>

namespace ringfleet::coordinator::cli {

// For options whose value travels in a protobuf string.
CLI::Validator Utf8Path();

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_VALUE_CHECKS_H_
