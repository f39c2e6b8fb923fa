// SPDX-License-Identifier: Apache-2.0
// What CLI11 lets through and no option means.
#ifndef RINGFLEET_COORDINATOR_CLI_VALUE_CHECKS_H_
#define RINGFLEET_COORDINATOR_CLI_VALUE_CHECKS_H_

#include <CLI/CLI.hpp>

namespace ringfleet::coordinator::cli {

// For options whose value travels in a protobuf string.
CLI::Validator Utf8Path();

// For lists that have a default when they are not given.
CLI::Validator NotEmpty();

// Makes NaN and infinities errors of every option that takes a number (a range
// does not exclude NaN), and negative numbers of every option that takes an
// unsigned one (-1 would be 2^64 - 1). For an app and all its verbs, once they
// have their options.
void CheckNumbers(CLI::App& app);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_VALUE_CHECKS_H_
