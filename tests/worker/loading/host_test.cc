// SPDX-License-Identifier: Apache-2.0
#include "worker/loading/host.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

struct MemoryPolicy {
  int mode = -1;
  unsigned long nodes[16] = {};  // The kernel's type.
};

// False where the system does not tell.
bool GetMemoryPolicy(MemoryPolicy* policy) {
  return syscall(SYS_get_mempolicy, &policy->mode, policy->nodes, 1024, nullptr,
                 0) == 0;
}

// A folder as the system's of nodes: their CPUs, by node.
class NodesFolder {
 public:
  NodesFolder(const std::string& online,
              const std::map<int, std::string>& cpus) {
    std::ofstream(folder_.File("online")) << online << "\n";
    for (const auto& [node, list] : cpus) {
      const std::string name = folder_.File(absl::StrCat("node", node));
      std::filesystem::create_directory(name);
      std::ofstream(name + "/cpulist") << list << "\n";
    }
  }
  const std::string& path() const { return folder_.path(); }

 private:
  const testing::TempDir folder_;
};

TEST(NumaTest, NodesAreThoseWithCpusOfTheProcess) {
  // The third has memory only.
  const NodesFolder folder("0-2,5",
                           {{0, "0-3,8"}, {1, "4-7"}, {2, ""}, {5, "9"}});
  const auto nodes = [&](const std::vector<int>& cpus) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int cpu : cpus) CPU_SET(cpu, &set);
    return NumaNodesOf(set, folder.path());
  };
  EXPECT_THAT(nodes({0, 1, 2, 3, 4, 8, 9}), ElementsAre(0, 1, 5));
  EXPECT_THAT(nodes({8}), ElementsAre(0));
  EXPECT_THAT(nodes({7, 9}), ElementsAre(1, 5));
  EXPECT_THAT(nodes({11}), ElementsAre());
  EXPECT_THAT(NumaNodesOf(Affinity(), folder.path() + "/none"), ElementsAre());
}

// In threads of their own: affinity and policy are a thread's.
TEST(NumaTest, BindsCpusAndPrefersMemoryOfANode) {
  const std::vector<int> nodes = NumaNodesOf(Affinity());
  if (nodes.empty()) GTEST_SKIP() << "the system names no NUMA nodes";
  std::thread([&] {
    ASSERT_TRUE(BindToNumaNode(nodes.back()).ok());
    EXPECT_THAT(NumaNodesOf(Affinity()), ElementsAre(nodes.back()));
    MemoryPolicy policy;
    if (!GetMemoryPolicy(&policy)) GTEST_SKIP() << "no get_mempolicy";
    if (syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0) != 0) {
      GTEST_SKIP() << "no set_mempolicy";
    }
    EXPECT_EQ(policy.mode, MPOL_PREFERRED);
    EXPECT_EQ(policy.nodes[nodes.back() / 64], 1ul << nodes.back() % 64);
  }).join();
  const absl::Status unknown = BindToNumaNode(1000);
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(unknown.message(), HasSubstr("NUMA node 1000, want one of 0"));
}

TEST(NumaTest, BindingKeepsToTheCpusThatAreAllowed) {
  const cpu_set_t allowed = Affinity();
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  }
  if (cpus.size() < 2) GTEST_SKIP() << "one CPU";
  const NodesFolder folder(
      "0-1", {{0, absl::StrCat(cpus[0], "-", cpus.back())}, {1, "1023"}});
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpus[1], &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);  // As taskset does.
    ASSERT_TRUE(BindToNumaNode(0, folder.path()).ok());
    const cpu_set_t bound = Affinity();
    EXPECT_TRUE(CPU_EQUAL(&bound, &one));
    const absl::Status none = BindToNumaNode(1, folder.path());
    EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(none.message(), HasSubstr("none of its CPUs 1023"));
  }).join();
}

// The system itself leaves out nodes that it does not have.
TEST(NumaTest, MemoryIsSpreadOverSeveralNodesOnly) {
  const cpu_set_t cpus = Affinity();
  std::string all;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &cpus)) {
      absl::StrAppend(&all, all.empty() ? "" : ",", cpu);
    }
  }
  for (const bool several : {false, true}) {
    const NodesFolder folder("0-1", {{0, all}, {1, several ? all : ""}});
    std::thread([&] {
      if (syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0) != 0) {
        GTEST_SKIP() << "no set_mempolicy";
      }
      SpreadOverNumaNodes(folder.path());
      MemoryPolicy policy;
      if (!GetMemoryPolicy(&policy)) GTEST_SKIP() << "no get_mempolicy";
      EXPECT_EQ(policy.mode, several ? MPOL_INTERLEAVE : MPOL_DEFAULT);
    }).join();
  }
}

}  // namespace
}  // namespace ringfleet::worker
