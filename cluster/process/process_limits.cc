// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/process_limits.h"

#include <malloc.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "cluster/process/cgroup.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

rlimit OpenFileLimit() {
  rlimit limit = {};
  RF_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  return limit;
}

// Returns what a limit leaves beside `used` bytes.
uint64_t BytesLeft(decltype(RLIMIT_AS) which, uint64_t used) {
  rlimit limit = {};
  if (getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<uint64_t>::max();
  }
  return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

}  // namespace

void RaiseOpenFileLimit() {
  rlimit limit = OpenFileLimit();
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // CheckOpenFiles() sees a refusal.
}

void KeepFreedMemory() {
  // Several lanes have less in flight.
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  // The largest threshold that malloc reaches by itself; setting the other one
  // ends that adaptation.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
}

absl::Status CheckOpenFiles(size_t needed) {
  const rlimit limit = OpenFileLimit();
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= needed) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("open files: limit ", limit.rlim_cur, ", want at least ",
                   needed, "; raise it with ulimit -n"));
}

int AvailableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // A machine may have more CPUs than the set.
  int64_t cpus = sched_getaffinity(0, sizeof(set), &set) == 0
                     ? CPU_COUNT(&set)
                     : sysconf(_SC_NPROCESSORS_ONLN);
  for (const CgroupCpus& limit : CgroupCpuLimits()) {
    cpus = std::min<int64_t>(cpus, limit.cpus);
  }
  return static_cast<int>(std::max<int64_t>(cpus, 1));
}

uint64_t AvailableAddressSpaceBytes() {
  // Pages: mapped, resident, shared, code, 0, data with stacks.
  uint64_t pages[6] = {};
  std::ifstream file("/proc/self/statm");
  for (uint64_t& count : pages) file >> count;
  if (!file) return std::numeric_limits<uint64_t>::max();
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return std::min(BytesLeft(RLIMIT_AS, pages[0] * page),
                  BytesLeft(RLIMIT_DATA, pages[5] * page));
}

uint64_t ResidentBytes() {
  uint64_t mapped = 0, resident = 0;  // Pages.
  std::ifstream file("/proc/self/statm");
  file >> mapped >> resident;
  return file ? resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

std::string MachineId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

size_t ThreadLimit(const std::string& root) {
  rlimit user = {};
  RF_CHECK(getrlimit(RLIMIT_NPROC, &user) == 0);
  size_t limit = user.rlim_cur == RLIM_INFINITY ? SIZE_MAX : user.rlim_cur;
  for (const CgroupTasks& cgroup : CgroupTaskLimits(root)) {
    limit = std::min<size_t>(limit, cgroup.limit);
  }
  return limit;
}

}  // namespace ringfleet::cluster
