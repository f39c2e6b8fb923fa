// SPDX-License-Identifier: Apache-2.0
// Limits of threads: pids.max of cgroups, ulimit -u, and the address space
// (ulimit -v) that holds their stacks. gRPC hangs or aborts without a word if a
// thread cannot start, so a process asks first.
#ifndef RINGFLEET_CLUSTER_PROCESS_THREAD_LIMIT_H_
#define RINGFLEET_CLUSTER_PROCESS_THREAD_LIMIT_H_

#include "absl/status/status.h"

namespace ringfleet::cluster {

// Return the number of threads that a process starts beside its first one, when
// it is busy: a command that calls a server, a coordinator of `world` workers,
// and a worker with `kernel_threads`.
int ClientThreads();
int CoordinatorThreads(int world);
int WorkerThreads(int kernel_threads);

// Starts and ends threads to learn whether this process can start `own` more
// threads while its child processes start `children`.
//
// Errors: RESOURCE_EXHAUSTED names the limit and the number that is wanted.
absl::Status CheckThreads(int own, int children = 0);

// Makes an exception that nobody catches an error if it says that a thread
// cannot start or that no memory is left: one line on stderr that begins with
// `program`, and exit code 1. Other exceptions abort as usual. Call first in
// main. `program` must outlive the process.
void EndWithoutResources(const char* program);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PROCESS_THREAD_LIMIT_H_
