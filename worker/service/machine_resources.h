// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_SERVICE_MACHINE_RESOURCES_H_
#define RINGFLEET_WORKER_SERVICE_MACHINE_RESOURCES_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "protos/cluster.pb.h"

namespace ringfleet::worker {

// A worker's number of threads as --threads gives it: a number, 0 for all CPUs,
// or "cores/N" for one of N workers that share the machine.
struct ThreadCount {
  int number = 0;   // 0: a part of the CPUs.
  int sharing = 1;  // Workers that share the CPUs.
};

// Errors: INVALID_ARGUMENT: another text, or a number out of range.
absl::StatusOr<ThreadCount> ParseThreads(absl::string_view text);

// Returns the threads of a worker that could run on `machine_cpus` CPUs when it
// started and may run on `own_cpus` of them. At least 1.
int ThreadsOf(const ThreadCount& count, int machine_cpus, int own_cpus);

// Adds the machine's available memory, and that of each cgroup that limits this
// process.
void AddMemoryPools(
    google::protobuf::RepeatedPtrField<v1::ResourcePool>* pools);

// Fills in the machine and the memory that this process shares with others.
// `shared_threads` > 0: the CPUs too, of which this worker wants so many at
// most. 0: the worker's threads were given.
void DescribeMachine(int shared_threads, v1::RegisterRequest* request);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_SERVICE_MACHINE_RESOURCES_H_
