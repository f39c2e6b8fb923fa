// SPDX-License-Identifier: Apache-2.0
#include "worker/host.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace ringfleet::worker {
namespace {

cpu_set_t Affinity() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  sched_getaffinity(0, sizeof(cpus), &cpus);
  return cpus;
}

TEST(ScopedCpuPinTest, KeepsThisThreadOnOneCpuAndGivesTheRestBack) {
  const cpu_set_t before = Affinity();
  const int count = CPU_COUNT(&before);
  cpu_set_t used;
  CPU_ZERO(&used);
  for (int index = 0; index < count; ++index) {
    {
      const ScopedCpuPin pin(index);
      const cpu_set_t pinned = Affinity();
      EXPECT_EQ(CPU_COUNT(&pinned), 1);
      cpu_set_t again;
      CPU_OR(&again, &pinned, &pinned);
      CPU_OR(&used, &used, &pinned);
      {
        const ScopedCpuPin inner(5);  // Of the one that is left.
        const cpu_set_t same = Affinity();
        EXPECT_TRUE(CPU_EQUAL(&same, &again));
      }
    }
    const cpu_set_t after = Affinity();
    EXPECT_TRUE(CPU_EQUAL(&after, &before));
  }
  EXPECT_TRUE(CPU_EQUAL(&used, &before)) << "an index has no CPU of its own";
  const ScopedCpuPin beyond(count);
  const cpu_set_t wrapped = Affinity();
  EXPECT_EQ(CPU_COUNT(&wrapped), 1);
  std::thread([&] {
    const cpu_set_t inherited = Affinity();
    EXPECT_TRUE(CPU_EQUAL(&inherited, &wrapped));
  }).join();
}

}  // namespace
}  // namespace ringfleet::worker
