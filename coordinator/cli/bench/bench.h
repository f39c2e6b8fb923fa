// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_BENCH_BENCH_H_
#define RINGFLEET_COORDINATOR_CLI_BENCH_BENCH_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Adds the verb `ringfleet bench`, which measures tokens per second in
// llama-bench's way.
void RegisterBench(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_BENCH_BENCH_H_
