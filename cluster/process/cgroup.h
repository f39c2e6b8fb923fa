// SPDX-License-Identifier: Apache-2.0
// Limits that control groups put on this process: those of its own cgroup and
// of every cgroup above it, as far as they are mounted. Version 1, version 2
// and both at once (kernel: admin-guide/cgroup-v1, admin-guide/cgroup-v2.rst).
//
// /proc/self/cgroup names the cgroup and /proc/self/mountinfo the folder of its
// hierarchy. A cgroup namespace may hide the way from one to the other; the
// folder is then found by the process id in its cgroup.procs.
//
// Every function takes a prefix of all paths for tests, reads the files anew
// and leaves out cgroups without a limit. Thread-safe.
#ifndef RINGFLEET_CLUSTER_PROCESS_CGROUP_H_
#define RINGFLEET_CLUSTER_PROCESS_CGROUP_H_

#include <cstdint>
#include <string>
#include <vector>

namespace ringfleet::cluster {

// One cgroup's limit of memory.
struct CgroupMemory {
  std::string id;  // Names the cgroup to all processes of the machine.
  uint64_t limit_bytes = 0;
  // The limit without the used bytes. Page cache and kernel objects that the
  // kernel can drop at once are not used; dirty pages are.
  uint64_t available_bytes = 0;
};
std::vector<CgroupMemory> CgroupMemoryLimits(const std::string& root = "");

// One cgroup's limit of CPU time (docker --cpus, CPUQuota=).
struct CgroupCpus {
  std::string id;  // As in CgroupMemory.
  int cpus = 1;    // Whole CPUs, rounded up.
};
std::vector<CgroupCpus> CgroupCpuLimits(const std::string& root = "");

// One cgroup's limit of processes and threads (docker --pids-limit, TasksMax=).
struct CgroupTasks {
  std::string file;  // Path of the file with the limit.
  uint64_t limit = 0;
  uint64_t running = 0;
};
std::vector<CgroupTasks> CgroupTaskLimits(const std::string& root = "");

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PROCESS_CGROUP_H_
