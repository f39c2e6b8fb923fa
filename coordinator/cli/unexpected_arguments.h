// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_UNEXPECTED_ARGUMENTS_H_
#define RINGFLEET_COORDINATOR_CLI_UNEXPECTED_ARGUMENTS_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace ringfleet::coordinator::cli {

// Says which arguments `verb` does not know, in the order in which they were
// typed, and for each flag what it lacks here or the nearest flag: "unexpected
// arguments --stop foo: stop strings are not supported". Requires an argument.
std::string DescribeUnexpected(const CLI::App& verb,
                               const std::vector<std::string>& arguments);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_UNEXPECTED_ARGUMENTS_H_
