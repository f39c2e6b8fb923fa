// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_BENCH_BENCH_H_
#define RINGFLEET_COORDINATOR_CLI_BENCH_BENCH_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// `ringfleet bench`: tokens per second, as llama-bench measures them.
void RegisterBench(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_BENCH_BENCH_H_
