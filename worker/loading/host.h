// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_LOADING_HOST_H_
#define RINGFLEET_WORKER_LOADING_HOST_H_

#include <sched.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace ringfleet::worker {

// Returns the bytes that new processes can get without swapping: MemAvailable
// of /proc/meminfo, or less if a cgroup limits this process. Returns the
// largest number if neither can be read.
uint64_t AvailableMemoryBytes();

// Returns the bytes that this process may still map under its limit of address
// space (ulimit -v). Returns the largest number if there is no limit.
uint64_t AvailableAddressSpaceBytes();

// Bytes of all last-level caches of this machine, from /sys; 0 when it does not
// tell.
uint64_t LastLevelCacheBytes();

// Model name of the first processor in /proc/cpuinfo; empty when it has none.
std::string CpuModel();

// The number of CPUs that this process may run on.
int AvailableCpus();

// The CPUs of this process if they are as many as `threads`, so that each
// thread can have one to itself; else none, because others may want the rest.
std::vector<int> OneCpuEach(int threads);

// Keeps the calling thread, and threads that it starts, on one of its CPUs
// while in scope: the `index`-th modulo their number. Two threads that wait for
// each other by spinning need this: once on one CPU, each runs only when the
// other has given up, and a busy machine never moves them apart. Does nothing
// when the system refuses.
class ScopedCpuPin {
 public:
  explicit ScopedCpuPin(int index);
  ~ScopedCpuPin();
  ScopedCpuPin(const ScopedCpuPin&) = delete;
  ScopedCpuPin& operator=(const ScopedCpuPin&) = delete;

 private:
  bool pinned_ = false;
  cpu_set_t before_;
};

// The NUMA nodes that have any of `cpus`, ascending, by the system's folder of
// nodes (a parameter for tests); empty where there is none.
std::vector<int> NumaNodesOf(
    const cpu_set_t& cpus,
    const std::string& folder = "/sys/devices/system/node");

// Runs this thread and those it starts on the CPUs of one NUMA node, and
// prefers that node's memory: other nodes' is taken when it is full.
// Errors: INVALID_ARGUMENT names the node and the nodes there are.
absl::Status BindToNumaNode(int node);

// Takes memory for this thread and those it starts page by page from all NUMA
// nodes that have CPUs of this process. Every thread reads all parts of a
// step's weights, so that on average each node's memory and links do an equal
// part. Does nothing with one node, or when the system refuses.
void SpreadOverNumaNodes(
    const std::string& folder = "/sys/devices/system/node");

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_HOST_H_
