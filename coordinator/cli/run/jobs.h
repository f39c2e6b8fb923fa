// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_RUN_JOBS_H_
#define RINGFLEET_COORDINATOR_CLI_RUN_JOBS_H_

#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// `ringfleet jobs`: lists a fleet's jobs.
void RegisterJobs(CLI::App& app, Invocation& invocation);

// `ringfleet show`: shows a job's state and its result.
void RegisterShow(CLI::App& app, Invocation& invocation);

// `ringfleet cancel`: ends a job.
void RegisterCancel(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_RUN_JOBS_H_
