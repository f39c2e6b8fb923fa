// SPDX-License-Identifier: Apache-2.0
#include "worker/service/machine_resources.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cluster/process/cgroup.h"
#include "cluster/process/process_limits.h"
#include "worker/loading/host.h"

namespace ringfleet::worker {
namespace {

constexpr int kMostThreads = 1024;

template <typename Pools>
void AddPool(const std::string& id, uint64_t amount, Pools* pools) {
  v1::ResourcePool* pool = pools->Add();
  pool->set_id(id);
  pool->set_amount(amount);
}

// "cpus 0,1,4"; workers with equal sets share them. Empty: unknown.
std::string CpuSetId(int* count) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return "";
  *count = CPU_COUNT(&set);
  std::string id = "cpus ";
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) absl::StrAppend(&id, cpu, ",");
  }
  return id;
}

}  // namespace

absl::StatusOr<ThreadCount> ParseThreads(absl::string_view text) {
  absl::string_view number = text;
  const bool shares = absl::ConsumePrefix(&number, "cores/");
  int value = 0;
  if (!absl::SimpleAtoi(number, &value) || value < (shares ? 1 : 0) ||
      value > kMostThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("--threads ", text, ", want 0 to ", kMostThreads,
                     ", or cores/N for one of N workers of a machine"));
  }
  return shares ? ThreadCount{.sharing = value} : ThreadCount{.number = value};
}

int ThreadsOf(const ThreadCount& count, int machine_cpus, int own_cpus) {
  if (count.number > 0) return count.number;
  return std::max(1, std::min(machine_cpus / count.sharing, own_cpus));
}

void AddMemoryPools(
    google::protobuf::RepeatedPtrField<v1::ResourcePool>* pools) {
  AddPool("machine", MachineMemoryBytes(), pools);
  for (const cluster::CgroupMemory& cgroup : cluster::CgroupMemoryLimits()) {
    AddPool(cgroup.id, cgroup.available_bytes, pools);
  }
}

void DescribeMachine(int shared_threads, v1::RegisterRequest* request) {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  request->set_host(host);
  request->set_machine(cluster::MachineId());
  AddMemoryPools(request->mutable_memory());
  if (shared_threads == 0) return;
  AddPool("", shared_threads, request->mutable_cpus());
  int count = 0;
  const std::string set = CpuSetId(&count);
  if (!set.empty()) AddPool(set, count, request->mutable_cpus());
  for (const cluster::CgroupCpus& cgroup : cluster::CgroupCpuLimits()) {
    AddPool(cgroup.id, cgroup.cpus, request->mutable_cpus());
  }
}

}  // namespace ringfleet::worker
