// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/cgroup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/process_limits.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::cluster {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;

constexpr char kVersion2[] =
    "25 1 0:23 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

// A folder in place of the root of the system's files.
class FakeRoot {
 public:
  FakeRoot(const std::string& cgroup, const std::string& mountinfo) {
    Write("/proc/self/cgroup", cgroup);
    Write("/proc/self/mountinfo",
          "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n" + mountinfo);
  }
  const std::string& path() const { return folder_.path(); }
  void Write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = folder_.path() + file;
    std::filesystem::create_directories(path.parent_path());
    testing::WriteFile(path, text);
  }
  // A cgroup of version 2 with `limit` and `used` bytes and a page cache.
  void Memory(const std::string& folder, const std::string& limit, int used,
              const std::string& stat = "") {
    Write(folder + "/memory.max", limit + "\n");
    Write(folder + "/memory.current", absl::StrCat(used, "\n"));
    Write(folder + "/memory.stat", stat);
  }
  void OldMemory(const std::string& folder, const std::string& limit, int used,
                 const std::string& stat = "") {
    Write(folder + "/memory.limit_in_bytes", limit + "\n");
    Write(folder + "/memory.usage_in_bytes", absl::StrCat(used, "\n"));
    Write(folder + "/memory.stat", stat);
  }

  std::vector<std::pair<uint64_t, uint64_t>> LimitsAndAvailable() const {
    std::vector<std::pair<uint64_t, uint64_t>> limits;
    for (const CgroupMemory& memory : CgroupMemoryLimits(path())) {
      limits.emplace_back(memory.limit_bytes, memory.available_bytes);
    }
    return limits;
  }
  std::vector<int> Cpus() const {
    std::vector<int> cpus;
    for (const CgroupCpus& limit : CgroupCpuLimits(path())) {
      cpus.push_back(limit.cpus);
    }
    return cpus;
  }

 private:
  const testing::TempDir folder_;
};

using Pairs = std::vector<std::pair<uint64_t, uint64_t>>;

TEST(CgroupTest, WithoutCgroupsThereIsNoLimit) {
  const FakeRoot none("", "");
  EXPECT_THAT(none.LimitsAndAvailable(), IsEmpty());
  EXPECT_THAT(none.Cpus(), IsEmpty());
  EXPECT_THAT(CgroupTaskLimits(none.path()), IsEmpty());
  EXPECT_THAT(CgroupMemoryLimits(none.path() + "/none"), IsEmpty());
}

TEST(CgroupTest, Version2HasTheLimitsOfItsOwnCgroupAndOfAllAbove) {
  FakeRoot root("0::/a.slice/b.service\n", kVersion2);
  const std::string top = "/sys/fs/cgroup";
  root.Memory(top + "/a.slice/b.service", "1000", 300);
  root.Memory(top + "/a.slice", "700", 500);
  root.Memory(top, "max", 5000);  // The real root has no such file.
  EXPECT_EQ(root.LimitsAndAvailable(), (Pairs{{1000, 700}, {700, 200}}));
  root.Memory(top + "/a.slice", "400", 500);  // Lowered under its use.
  EXPECT_EQ(root.LimitsAndAvailable(), (Pairs{{1000, 700}, {400, 0}}));
  root.Write(top + "/a.slice/b.service/memory.high", "350\n");
  EXPECT_EQ(root.LimitsAndAvailable(), (Pairs{{350, 50}, {400, 0}}));
  root.Write(top + "/a.slice/b.service/memory.high", "max\n");
  EXPECT_EQ(root.LimitsAndAvailable()[0].first, 1000u);

  root.Write(top + "/a.slice/b.service/cpu.max", "150000 100000\n");
  root.Write(top + "/a.slice/cpu.max", "max 100000\n");
  root.Write(top + "/cpu.max", "800000 200000\n");
  EXPECT_THAT(root.Cpus(), ElementsAre(2, 4));

  root.Write(top + "/a.slice/b.service/pids.max", "max\n");
  root.Write(top + "/a.slice/pids.max", "36\n");
  root.Write(top + "/a.slice/pids.current", "7\n");
  EXPECT_THAT(
      CgroupTaskLimits(root.path()),
      ElementsAre(AllOf(
          Field(&CgroupTasks::file, root.path() + top + "/a.slice/pids.max"),
          Field(&CgroupTasks::limit, 36u), Field(&CgroupTasks::running, 7u))));
  EXPECT_EQ(ThreadLimit(root.path()), 36u);
  root.Write(top + "/a.slice/pids.max", "max\n");
  EXPECT_GE(ThreadLimit(root.path()), ThreadLimit());
}

TEST(CgroupTest, QuotasAreRoundedUpToWholeCpus) {
  FakeRoot root("0::/\n", kVersion2);
  const std::vector<std::pair<std::string, int>> cases = {
      {"1000 100000", 1},
      {"100000 100000", 1},
      {"100001 100000", 2},
      {"50000 1000", 50},
      {"6400000 100000", 64}};
  for (const auto& [quota, cpus] : cases) {
    root.Write("/sys/fs/cgroup/cpu.max", quota + "\n");
    EXPECT_THAT(root.Cpus(), ElementsAre(cpus)) << quota;
  }
  for (const char* none : {"max 100000", "", "0 100000", "100000 0", "what"}) {
    root.Write("/sys/fs/cgroup/cpu.max", none);
    EXPECT_THAT(root.Cpus(), IsEmpty()) << none;
  }
}

TEST(CgroupTest, PageCacheThatCanBeDroppedIsAvailable) {
  const std::string top = "/sys/fs/cgroup";
  FakeRoot root("0::/\n", kVersion2);
  root.Memory(top, "1000", 990,
              "anon 10\nfile 900\nfile_dirty 60\nfile_writeback 40\n"
              "inactive_anon 500\ninactive_file 600\nactive_file 300\n"
              "slab_reclaimable 5\nslab_unreclaimable 70\n");
  EXPECT_EQ(root.LimitsAndAvailable(), (Pairs{{1000, 815}}));
  // Statistics lag behind: never more than the limit.
  root.Memory(top, "1000", 10, "inactive_file 600\n");
  EXPECT_EQ(root.LimitsAndAvailable(), (Pairs{{1000, 1000}}));
  root.Memory(top, "1000", 400, "inactive_file 5\nfile_dirty 600\n");
  EXPECT_EQ(root.LimitsAndAvailable(), (Pairs{{1000, 600}}));

  FakeRoot old("4:memory:/\n",
               "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup "
               "rw,memory\n");
  old.OldMemory(top + "/memory", "1000", 990,
                "cache 1\ninactive_file 1\nactive_file 1\ntotal_cache 900\n"
                "total_dirty 60\ntotal_writeback 40\ntotal_inactive_file 600\n"
                "total_active_file 300\n");
  EXPECT_EQ(old.LimitsAndAvailable(), (Pairs{{1000, 810}}));
}

TEST(CgroupTest, Version1HasAHierarchyForEachController) {
  FakeRoot root(
      "9:name=systemd:/x\n5:memory:/job/step\n4:cpu,cpuacct:/c\n"
      "3:pids:/job\n",
      "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
      "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup "
      "rw,cpu,cpuacct\n"
      "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
      "39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n");
  const std::string memory = "/sys/fs/cgroup/memory";
  root.OldMemory(memory + "/job/step", "9223372036854771712", 100);
  root.OldMemory(memory + "/job", "3000", 1000);
  root.OldMemory(memory, "9223372036854771712", 1000);
  EXPECT_EQ(root.LimitsAndAvailable(), (Pairs{{3000, 2000}}));
  // A limit above what is mounted.
  root.OldMemory(memory + "/job/step", "9223372036854771712", 100,
                 "hierarchical_memory_limit 2500\n");
  EXPECT_EQ(root.LimitsAndAvailable(), (Pairs{{2500, 2400}, {3000, 2000}}));
  // A cgroup that does not count those below it.
  root.Write(memory + "/job/memory.use_hierarchy", "0\n");
  EXPECT_EQ(root.LimitsAndAvailable(), (Pairs{{2500, 2400}}));

  const std::string cpu = "/sys/fs/cgroup/cpu,cpuacct";
  root.Write(cpu + "/c/cpu.cfs_quota_us", "-1\n");
  root.Write(cpu + "/c/cpu.cfs_period_us", "100000\n");
  EXPECT_THAT(root.Cpus(), IsEmpty());
  root.Write(cpu + "/cpu.cfs_quota_us", "250000\n");
  root.Write(cpu + "/cpu.cfs_period_us", "100000\n");
  EXPECT_THAT(root.Cpus(), ElementsAre(3));

  root.Write("/sys/fs/cgroup/pids/job/pids.max", "20\n");
  ASSERT_EQ(CgroupTaskLimits(root.path()).size(), 1u);
  EXPECT_EQ(CgroupTaskLimits(root.path())[0].limit, 20u);
}

TEST(CgroupTest, BothVersionsAtOnceCount) {
  FakeRoot root(
      "4:memory:/old\n0::/new\n",
      "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  root.OldMemory("/sys/fs/cgroup/memory/old", "900", 100);
  root.Write("/sys/fs/cgroup/unified/new/cgroup.procs", "");
  EXPECT_EQ(root.LimitsAndAvailable(), (Pairs{{900, 800}}));
  root.Write("/sys/fs/cgroup/unified/cpu.max", "100000 100000\n");
  EXPECT_THAT(root.Cpus(), ElementsAre(1));
}

TEST(CgroupTest, AContainerSeesItsOwnPartOnly) {
  // Without a namespace: the part that is mounted has the full name.
  FakeRoot part("5:memory:/docker/abc/inner\n",
                "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup "
                "cgroup rw,memory\n");
  part.OldMemory("/sys/fs/cgroup/memory", "800", 100);
  part.OldMemory("/sys/fs/cgroup/memory/inner", "600", 50);
  EXPECT_EQ(part.LimitsAndAvailable(), (Pairs{{600, 550}, {800, 700}}));
  // With one, all names begin at its own cgroup.
  FakeRoot own("0::/\n", kVersion2);
  own.Memory("/sys/fs/cgroup", "800", 100);
  EXPECT_EQ(own.LimitsAndAvailable(), (Pairs{{800, 700}}));
  // Its own cgroup is mounted under a name that it does not have there.
  FakeRoot renamed("0::/system.slice/docker-abc.scope\n", kVersion2);
  renamed.Memory("/sys/fs/cgroup", "800", 100);
  EXPECT_EQ(renamed.LimitsAndAvailable(), (Pairs{{800, 700}}));
  // A neighbour whose name begins alike is another one.
  FakeRoot alike("5:memory:/docker/abcdef\n",
                 "35 31 0:32 /docker/abc /elsewhere rw - cgroup cgroup "
                 "rw,memory\n"
                 "36 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup "
                 "rw,memory\n");
  alike.OldMemory("/elsewhere", "1", 0);
  alike.OldMemory("/sys/fs/cgroup/memory/docker/abcdef", "800", 100);
  EXPECT_EQ(alike.LimitsAndAvailable(), (Pairs{{800, 700}}));
}

TEST(CgroupTest, ANamespaceThatHidesTheNameIsSearchedForTheProcess) {
  // The mount begins two cgroups above the namespace.
  FakeRoot root("0::/\n",
                "25 1 0:23 /../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  const std::string top = "/sys/fs/cgroup";
  root.Memory(top + "/a", "500", 100);
  root.Memory(top + "/a/b", "300", 50);
  root.Memory(top + "/other", "1", 0);
  root.Write(top + "/other/cgroup.procs", "1\n");
  root.Write(top + "/a/b/cgroup.procs", absl::StrCat("1\n", getpid(), "\n"));
  EXPECT_EQ(root.LimitsAndAvailable(), (Pairs{{300, 250}, {500, 400}}));

  // Both names lead out by as much.
  FakeRoot equal("0::/../..\n",
                 "25 1 0:23 /../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  equal.Memory(top, "500", 100);
  EXPECT_EQ(equal.LimitsAndAvailable(), (Pairs{{500, 400}}));
  FakeRoot sibling("0::/../c\n",
                   "25 1 0:23 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  sibling.Memory(top + "/c", "500", 100);
  EXPECT_EQ(sibling.LimitsAndAvailable(), (Pairs{{500, 400}}));
  // This process is in none of the cgroups that are mounted.
  FakeRoot outside("0::/../../d\n", kVersion2);
  outside.Memory(top, "500", 100);
  EXPECT_THAT(outside.LimitsAndAvailable(), IsEmpty());
}

TEST(CgroupTest, NamesMayHaveBlanksAndColons) {
  FakeRoot root("0::/a b:c\n",
                "25 1 0:23 / /mnt/c\\040g rw shared:9 master:1 - cgroup2 "
                "cgroup2 rw\n");
  root.Memory("/mnt/c g/a b:c", "500", 100);
  EXPECT_EQ(root.LimitsAndAvailable(), (Pairs{{500, 400}}));
}

TEST(CgroupTest, FilesOverTheMountsCount) {
  FakeRoot root("5:memory:/x\n0::/\n",
                "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
                "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup "
                "rw,memory\n"
                "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
                "42 31 0:39 / /sys/fs/cgroup rw - tmpfs none rw\n");
  root.Memory("/sys/fs/cgroup", "500", 100);
  EXPECT_EQ(root.LimitsAndAvailable(), (Pairs{{500, 400}}));
}

TEST(CgroupTest, IdsTellCgroupsApart) {
  FakeRoot root("0::/a\n", kVersion2);
  root.Memory("/sys/fs/cgroup/a", "500", 100);
  root.Memory("/sys/fs/cgroup", "500", 100);
  const std::vector<CgroupMemory> once = CgroupMemoryLimits(root.path());
  const std::vector<CgroupMemory> again = CgroupMemoryLimits(root.path());
  ASSERT_EQ(once.size(), 2u);
  EXPECT_EQ(once[0].id, again[0].id);
  EXPECT_NE(once[0].id, once[1].id);
}

}  // namespace
}  // namespace ringfleet::cluster
