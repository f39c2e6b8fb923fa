// SPDX-License-Identifier: Apache-2.0
// Checks of values that CLI11 accepts and that are wrong for every option.
#ifndef RINGFLEET_COORDINATOR_CLI_VALUE_CHECKS_H_
#define RINGFLEET_COORDINATOR_CLI_VALUE_CHECKS_H_

#include <CLI/CLI.hpp>

namespace ringfleet::coordinator::cli {

// Returns a check for paths that travel in a protobuf string: a path must be
// UTF-8.
CLI::Validator Utf8Path();

// Returns a check for texts that travel in a protobuf string: a text must be
// UTF-8.
CLI::Validator Utf8Text();

// Returns a check for lists: an empty list is an error. An option that is not
// given has a default.
CLI::Validator NotEmpty();

// Adds checks to all options of an app that take a number. Refuses NaN and
// infinities, because a range does not exclude NaN. Refuses negative values for
// unsigned numbers, because CLI11 turns -1 into 2^64 - 1. Call it after all
// verbs have their options.
void CheckNumbers(CLI::App& app);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_VALUE_CHECKS_H_
