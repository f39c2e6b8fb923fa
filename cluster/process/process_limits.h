// SPDX-License-Identifier: Apache-2.0
// System limits of this process.
#ifndef RINGFLEET_CLUSTER_PROCESS_PROCESS_LIMITS_H_
#define RINGFLEET_CLUSTER_PROCESS_PROCESS_LIMITS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace ringfleet::cluster {

// Raises the limit of open files to the highest value that the administrator
// allows. A rank holds several connections to every other rank. A coordinator
// holds the connections of its callers.
void RaiseOpenFileLimit();

// Lets malloc keep up to a few hundred megabytes of freed memory. gRPC
// allocates memory for every frame that it receives, and a fresh page costs a
// fault: 1.8 MB to and from a peer over loopback take 1.5 ms with kept memory
// and 1.9 ms without. Call it before other threads start.
void KeepFreedMemory();

// Checks the limit of open files. RESOURCE_EXHAUSTED: fewer than `needed` files
// may be open at a time.
absl::Status CheckOpenFiles(size_t needed);

// Returns the number of threads that can run at a time: the CPUs that this
// thread may run on, or less if a cgroup limits CPU time. At least 1.
int AvailableCpus();

// Returns the bytes that this process may still map under its limits of address
// space (ulimit -v) and of data (ulimit -d). Returns the largest number if
// there is no limit.
uint64_t AvailableAddressSpaceBytes();

// Returns the bytes of this process that are in memory. 0: the system does not
// tell.
uint64_t ResidentBytes();

// Returns an id of this machine that all its containers share and that changes
// when it boots. Empty: the system does not tell.
std::string MachineId();

// Returns how many threads may run beside and in this process: the least of
// ulimit -u and of pids.max of its cgroup and of all above. SIZE_MAX: any
// number. `root` is as in cgroup.h.
size_t ThreadLimit(const std::string& root = "");

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PROCESS_PROCESS_LIMITS_H_
