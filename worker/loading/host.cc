// SPDX-License-Identifier: Apache-2.0
#include "worker/loading/host.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cluster/process/cgroup.h"

namespace ringfleet::worker {
namespace {

// "0-3,8": the kernel's lists of CPUs and nodes, those below CPU_SETSIZE.
std::vector<int> ParseList(absl::string_view list) {
  std::vector<int> numbers;
  for (absl::string_view part : absl::StrSplit(list, ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int first;
    int last;
    if (!absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last)) {
      continue;
    }
    for (int number = first; number <= std::min(last, CPU_SETSIZE - 1);
         ++number) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

// Sets the policy of this thread and the threads that it starts. Returns false
// if the system refuses. glibc has no wrapper of this call, which counts one
// bit more than it reads.
bool SetMemoryPolicy(int mode, const std::vector<int>& nodes) {
  constexpr int kMaxNodes = 1024;
  constexpr int kWordBits = std::numeric_limits<unsigned long>::digits;
  unsigned long mask[kMaxNodes / kWordBits] = {};  // NOLINT: the kernel's type.
  for (const int node : nodes) {
    if (node < kMaxNodes) mask[node / kWordBits] |= 1ul << node % kWordBits;
  }
  return syscall(SYS_set_mempolicy, mode, mask, kMaxNodes + 1) == 0;
}

}  // namespace

uint64_t MachineMemoryBytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  uint64_t kib;
  std::string unit;
  while (file >> key >> kib && std::getline(file, unit)) {
    if (key == "MemAvailable:") return kib << 10;
  }
  return std::numeric_limits<uint64_t>::max();
}

uint64_t AvailableMemoryBytes() {
  uint64_t bytes = MachineMemoryBytes();
  for (const cluster::CgroupMemory& cgroup : cluster::CgroupMemoryLimits()) {
    bytes = std::min(bytes, cgroup.available_bytes);
  }
  return bytes;
}

uint64_t LastLevelCacheBytes() {
  // CPUs that share a cache name the same CPUs in shared_cpu_list.
  std::set<std::string> seen;
  uint64_t bytes = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    std::string shared;
    std::string size;
    for (int index = 0; index < 8; ++index) {  // The last one is the largest.
      const std::string folder = absl::StrCat("/sys/devices/system/cpu/cpu",
                                              cpu, "/cache/index", index, "/");
      std::ifstream shared_file(folder + "shared_cpu_list");
      std::ifstream size_file(folder + "size");
      std::string next_shared;
      std::string next_size;
      if (!std::getline(shared_file, next_shared) ||
          !std::getline(size_file, next_size)) {
        break;
      }
      shared = next_shared;
      size = next_size;
    }
    uint64_t kib = 0;  // "32768K"
    if (size.empty() || size.back() != 'K' ||
        !absl::SimpleAtoi(size.substr(0, size.size() - 1), &kib)) {
      continue;
    }
    if (seen.insert(shared).second) bytes += kib << 10;
  }
  return bytes;
}

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.rfind("model name", 0) != 0)
      continue;
    return std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return "";
}

std::vector<int> OneCpuEach(int threads) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0) return {};
  if (CPU_COUNT(&cpus) != threads) return {};
  std::vector<int> numbers;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &cpus)) numbers.push_back(cpu);
  }
  return numbers;
}

ScopedCpuPin::ScopedCpuPin(int index) {
  CPU_ZERO(&before_);
  if (sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
  int left = index % std::max(1, CPU_COUNT(&before_));
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &before_) || left-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    pinned_ = sched_setaffinity(0, sizeof(one), &one) == 0;
    return;
  }
}

ScopedCpuPin::~ScopedCpuPin() {
  if (pinned_) sched_setaffinity(0, sizeof(before_), &before_);
}

std::vector<int> NumaNodesOf(const cpu_set_t& cpus, const std::string& folder) {
  std::vector<int> nodes;
  std::string online;
  std::getline(std::ifstream(folder + "/online") >> std::ws, online);
  for (const int node : ParseList(online)) {
    std::string list;
    std::getline(std::ifstream(absl::StrCat(folder, "/node", node, "/cpulist")),
                 list);
    for (const int cpu : ParseList(list)) {
      if (cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &cpus)) continue;
      nodes.push_back(node);
      break;
    }
  }
  return nodes;
}

absl::Status BindToNumaNode(int node, const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/node", node, "/cpulist");
  std::ifstream file(path);
  std::string list;
  if (!std::getline(file, list)) {
    std::ifstream online_file(folder + "/online");
    std::string online;
    std::getline(online_file, online);
    return absl::InvalidArgumentError(absl::StrCat(
        "NUMA node ", node, ", want one of ", online.empty() ? "0" : online));
  }
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof(allowed), &allowed);
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (const int cpu : ParseList(list)) {
    if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &cpus);
  }
  if (CPU_COUNT(&cpus) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("NUMA node ", node, ": this process may run on none of ",
                     "its CPUs ", list,
                     "; its CPU affinity (taskset, cpuset) "
                     "excludes them"));
  }
  if (sched_setaffinity(0, sizeof(cpus), &cpus) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "NUMA node ", node, ": CPUs ", list, ": ", std::strerror(errno)));
  }
  // Refused, as some containers do, pages lie where they are written first,
  // which is this node too.
  static_cast<void>(SetMemoryPolicy(MPOL_PREFERRED, {node}));
  return absl::OkStatus();
}

void SpreadOverNumaNodes(const std::string& folder) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0) return;
  const std::vector<int> nodes = NumaNodesOf(cpus, folder);
  if (nodes.size() > 1) {
    static_cast<void>(SetMemoryPolicy(MPOL_INTERLEAVE, nodes));
  }
}

}  // namespace ringfleet::worker
