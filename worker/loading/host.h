// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_LOADING_HOST_H_
#define RINGFLEET_WORKER_LOADING_HOST_H_

#include <sched.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace ringfleet::worker {

// Returns the bytes that new processes of the machine can get without swapping:
// MemAvailable of /proc/meminfo. Returns the largest number if it cannot be
// read.
uint64_t MachineMemoryBytes();

// Returns MachineMemoryBytes(), or less if cgroups limit this process.
uint64_t AvailableMemoryBytes();

// Returns the bytes of all last-level caches of this machine, from /sys.
// Returns 0 if /sys does not name them.
uint64_t LastLevelCacheBytes();

// Returns the model name of the first processor in /proc/cpuinfo. Returns an
// empty string if the file has none.
std::string CpuModel();

// Returns the CPUs that the calling thread may run on if their number equals
// `threads`. Each thread can then have a CPU of its own. Returns an empty list
// otherwise, because other processes may use the CPUs that are left over.
std::vector<int> OneCpuEach(int threads);

// Keeps the calling thread, and threads that it starts, on one CPU while in
// scope. If the thread may run on n CPUs, the CPU is number `index` modulo n,
// counted from 0. Two threads that spin until the other answers need a CPU
// each. On one CPU, a thread runs only when the other has stopped spinning, and
// a busy machine never moves them apart. Does nothing if the system refuses.
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

// Returns the NUMA nodes that have at least one of `cpus`, ascending. Reads the
// system's folder of nodes; tests pass another folder. Returns an empty list if
// there is no folder.
std::vector<int> NumaNodesOf(
    const cpu_set_t& cpus,
    const std::string& folder = "/sys/devices/system/node");

// Keeps the calling thread, and threads that it starts, on those CPUs of NUMA
// node `node` that the thread may run on already. Their memory comes from
// `node`, and from other nodes only if `node` has none free. Tests pass another
// `folder`.
// Errors: INVALID_ARGUMENT: there is no such node. The message names the node
// and all nodes of the machine. FAILED_PRECONDITION: the thread may run on none
// of the node's CPUs.
absl::Status BindToNumaNode(
    int node, const std::string& folder = "/sys/devices/system/node");

// Takes memory of the calling thread, and of threads that it starts, page by
// page in turn from all NUMA nodes that have CPUs of the thread. Every thread
// reads all parts of a step's weights, so each node's memory then serves an
// equal part of the reads. Does nothing with one node, or if the system
// refuses. Tests pass another `folder`.
void SpreadOverNumaNodes(
    const std::string& folder = "/sys/devices/system/node");

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_HOST_H_
