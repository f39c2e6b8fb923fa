// SPDX-License-Identifier: Apache-2.0
// Checks of values that CLI11 lets through and no option means.
#ifndef RINGFLEET_COORDINATOR_CLI_VALUE_CHECKS_H_
#define RINGFLEET_COORDINATOR_CLI_VALUE_CHECKS_H_

#include <CLI/CLI.hpp>

namespace ringfleet::coordinator::cli {

// Checks an option whose value travels in a protobuf string.
CLI::Validator Utf8Path();

// Checks a list that has a default when it is not given.
CLI::Validator NotEmpty();

// Refuses NaN and infinities for every option of a number, because a range does
// not exclude NaN, and negative numbers for every option of an unsigned number,
// because -1 would be 2^64 - 1. Call for an app once all its verbs have their
// options.
void CheckNumbers(CLI::App& app);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_VALUE_CHECKS_H_
