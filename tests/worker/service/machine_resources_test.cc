// SPDX-License-Identifier: Apache-2.0
#include "worker/service/machine_resources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <fstream>
#include <string>
#include <thread>

namespace ringfleet::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ThreadCountTest, IsANumberOrAPartOfTheCpus) {
  EXPECT_EQ(ParseThreads("7")->number, 7);
  EXPECT_EQ(ParseThreads("0")->number, 0);
  EXPECT_EQ(ParseThreads("0")->sharing, 1);
  EXPECT_EQ(ParseThreads("cores/3")->number, 0);
  EXPECT_EQ(ParseThreads("cores/3")->sharing, 3);
  for (const char* wrong : {"", "-1", "1025", "cores/0", "cores/", "cores/-1",
                            "2x", "cores", "cores/1025", "1.5"}) {
    const auto refused = ParseThreads(wrong);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.status().message(),
                HasSubstr(std::string("--threads ") + wrong + ", want 0"));
  }
}

TEST(ThreadCountTest, NeverExceedsTheCpusOfTheWorkerItself) {
  EXPECT_EQ(ThreadsOf({.number = 7}, 2, 1), 7);  // As it was told.
  EXPECT_EQ(ThreadsOf({}, 16, 16), 16);
  EXPECT_EQ(ThreadsOf({.sharing = 3}, 16, 16), 5);
  EXPECT_EQ(ThreadsOf({.sharing = 20}, 16, 16), 1);
  // One of two nodes, with two workers, with three, and with a cgroup's quota
  // of 6 CPUs for all.
  EXPECT_EQ(ThreadsOf({.sharing = 2}, 16, 8), 8);
  EXPECT_EQ(ThreadsOf({.sharing = 3}, 16, 8), 5);
  EXPECT_EQ(ThreadsOf({.sharing = 2}, 6, 6), 3);
  EXPECT_EQ(ThreadsOf({}, 16, 8), 8);
}

TEST(MachineResourcesTest, NameTheMachineAndWhatIsShared) {
  v1::RegisterRequest given;
  DescribeMachine(/*shared_threads=*/0, &given);
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id") >> std::ws,
               boot);
  EXPECT_EQ(given.machine(), boot);
  EXPECT_FALSE(given.host().empty());
  ASSERT_GE(given.memory_size(), 1);
  EXPECT_GT(given.memory(0).amount(), 0u);
  EXPECT_THAT(given.cpus(), IsEmpty());
}

TEST(MachineResourcesTest, WorkersOnOtherCpusShareNone) {
  v1::RegisterRequest all;
  DescribeMachine(/*shared_threads=*/3, &all);
  ASSERT_GE(all.cpus_size(), 2);
  EXPECT_EQ(all.cpus(0).id(), "");
  EXPECT_EQ(all.cpus(0).amount(), 3u);
  cpu_set_t set;
  CPU_ZERO(&set);
  ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  EXPECT_EQ(all.cpus(1).amount(), static_cast<uint64_t>(CPU_COUNT(&set)));
  if (CPU_COUNT(&set) < 2) GTEST_SKIP() << "one CPU";
  std::thread([&] {  // Affinity is a thread's.
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    v1::RegisterRequest part;
    DescribeMachine(/*shared_threads=*/1, &part);
    ASSERT_GE(part.cpus_size(), 2);
    EXPECT_NE(part.cpus(1).id(), all.cpus(1).id());
    EXPECT_EQ(part.cpus(1).amount(), 1u);
  })
      .join();
}

}  // namespace
}  // namespace ringfleet::worker
