// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/cgroup.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace ringfleet::cluster {
namespace {

// Version 1 writes "no limit" as the largest number of whole pages.
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

// A search by process id looks into this many folders at most.
constexpr int kMostFolders = 4096;

// Where one hierarchy, or a part of it, is mounted.
struct CgroupMount {
  std::string subtree;  // Cgroup at the mount point: mountinfo's "root".
  std::string point;    // Folder, with the prefix of tests.
};

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Reads the number at the beginning of a file. False: there is no such file, or
// it holds "max", -1 or another word, and `value` stays as it is.
bool ReadFirstNumber(const std::string& path, uint64_t* value) {
  uint64_t number;
  if (!absl::SimpleAtoi(FirstLine(path), &number)) return false;
  *value = number;
  return true;
}

// Lines "NAME NUMBER".
std::map<std::string, uint64_t> ReadNumbers(const std::string& path) {
  std::map<std::string, uint64_t> numbers;
  std::ifstream file(path);
  std::string name;
  uint64_t number;
  while (file >> name >> number) numbers[name] = number;
  return numbers;
}

bool HasWord(absl::string_view list, absl::string_view word) {
  const std::vector<absl::string_view> words = absl::StrSplit(list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

// mountinfo writes blanks and backslashes as three octal digits: "\040".
std::string Unescape(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const absl::string_view digits = text.substr(i + 1, 3);
    if (text[i] != '\\' || digits.size() != 3 ||
        digits.find_first_not_of("01234567") != absl::string_view::npos) {
      out += text[i];
      continue;
    }
    out += static_cast<char>((digits[0] - '0') * 64 + (digits[1] - '0') * 8 +
                             (digits[2] - '0'));
    i += 3;
  }
  return out;
}

// The mounts of version 2, or of the controller's hierarchy of version 1.
std::vector<CgroupMount> FindMounts(const std::string& root, bool version2,
                                    absl::string_view controller) {
  std::vector<CgroupMount> mounts;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    // "31 23 0:28 SUBTREE POINT OPTIONS [TAGS...] - TYPE SOURCE OPTIONS"
    const std::vector<absl::string_view> halves =
        absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    if (halves.size() < 2) continue;
    const std::vector<absl::string_view> left = absl::StrSplit(halves[0], ' ');
    const std::vector<absl::string_view> right = absl::StrSplit(halves[1], ' ');
    if (left.size() < 5 || right.size() < 3) continue;
    const bool wanted =
        version2 ? right[0] == "cgroup2"
                 : right[0] == "cgroup" && HasWord(right[2], controller);
    if (!wanted) continue;
    mounts.push_back({Unescape(left[3]), root + Unescape(left[4])});
  }
  return mounts;
}

// The cgroup of this process, as /proc/self/cgroup names it. False: none.
bool FindCgroup(const std::string& root, bool version2,
                absl::string_view controller, std::string* cgroup) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    // "4:memory:/PATH"; version 2 has the number 0 and no controllers.
    const std::vector<absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() < 3) continue;
    if (version2 ? parts[0] != "0" || !parts[1].empty()
                 : !HasWord(parts[1], controller)) {
      continue;
    }
    *cgroup = std::string(parts[2]);
    return true;
  }
  return false;
}

bool IsFolder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

// True for a path that leads out of what a namespace shows.
bool LeadsOut(absl::string_view path) {
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/');
  return std::find(parts.begin(), parts.end(), "..") != parts.end();
}

// Finds the path of `cgroup` below the subtree of a mount: "" or "/a/b". False:
// the names alone do not tell.
bool PathBelow(absl::string_view cgroup, absl::string_view subtree,
               std::string* below) {
  if (subtree == "/") subtree = "";
  if (cgroup == "/") cgroup = "";
  if (!absl::ConsumePrefix(&cgroup, subtree)) return false;
  if (!cgroup.empty() && cgroup[0] != '/') return false;
  if (LeadsOut(cgroup)) return false;
  *below = std::string(cgroup);
  return true;
}

bool HoldsThisProcess(const std::string& folder) {
  std::ifstream file(folder + "/cgroup.procs");
  for (int64_t pid; file >> pid;) {
    if (pid == getpid()) return true;
  }
  return false;
}

// Finds the path of the folder below `point` that lists this process.
bool SearchBelow(const std::string& point, std::string* below) {
  std::deque<std::string> folders = {""};
  for (int seen = 0; !folders.empty() && seen < kMostFolders; ++seen) {
    const std::string path = folders.front();
    folders.pop_front();
    if (HoldsThisProcess(point + path)) {
      *below = path;
      return true;
    }
    std::error_code error;
    for (std::filesystem::directory_iterator it(point + path, error), end;
         !error && it != end; it.increment(error)) {
      std::error_code ignored;
      if (!it->is_directory(ignored) || it->is_symlink(ignored)) continue;
      folders.push_back(
          absl::StrCat(path, "/", it->path().filename().string()));
    }
  }
  return false;
}

// The folders from `point` + `below` up to `point`.
std::vector<std::string> Upwards(const std::string& point, std::string below) {
  std::vector<std::string> folders;
  while (!below.empty()) {
    folders.push_back(point + below);
    below.resize(below.rfind('/'));
  }
  folders.push_back(point);
  return folders;
}

// The folders of this process's cgroup and of those above it, lowest first.
std::vector<std::string> FindFolders(const std::string& root, bool version2,
                                     absl::string_view controller) {
  std::string cgroup;
  if (!FindCgroup(root, version2, controller, &cgroup)) return {};
  std::vector<CgroupMount> mounts = FindMounts(root, version2, controller);
  // Another mount may lie over one.
  std::erase_if(
      mounts, [](const CgroupMount& mount) { return !IsFolder(mount.point); });
  // The deepest path: several mounts may show parts of one hierarchy.
  std::vector<std::string> folders;
  for (const CgroupMount& mount : mounts) {
    std::string below;
    if (!PathBelow(cgroup, mount.subtree, &below) ||
        !IsFolder(mount.point + below)) {
      continue;
    }
    std::vector<std::string> found = Upwards(mount.point, below);
    if (found.size() > folders.size()) folders = std::move(found);
  }
  for (size_t i = 0; i < mounts.size() && folders.empty(); ++i) {
    std::string below;
    if (SearchBelow(mounts[i].point, &below)) {
      folders = Upwards(mounts[i].point, below);
    }
  }
  if (!folders.empty()) return folders;
  // A container may show its own cgroup only, under the name of all.
  for (const CgroupMount& mount : mounts) {
    std::string ignored;
    if (LeadsOut(cgroup) || PathBelow(mount.subtree, cgroup, &ignored))
      continue;
    return {mount.point};
  }
  if (!mounts.empty()) return {};
  // A sandbox may lay files of its own over the mounts.
  const std::string usual = absl::StrCat(
      root, "/sys/fs/cgroup", version2 ? "" : "/", version2 ? "" : controller);
  if (IsFolder(usual)) folders.push_back(usual);
  return folders;
}

// A number that names the folder's cgroup on this machine, in any namespace.
std::string IdOf(const std::string& folder) {
  struct stat status = {};
  stat(folder.c_str(), &status);
  return absl::StrCat(status.st_dev, ":", status.st_ino);
}

// Without what the kernel can take back at once.
uint64_t NotReclaimable(uint64_t used, uint64_t cached, uint64_t unwritten) {
  const uint64_t reclaimable = cached - std::min(cached, unwritten);
  return used - std::min(used, reclaimable);
}

void AddMemory(const std::string& folder, uint64_t limit, uint64_t used,
               std::vector<CgroupMemory>* limits) {
  if (limit >= kNoLimit) return;
  limits->push_back({.id = IdOf(folder),
                     .limit_bytes = limit,
                     .available_bytes = limit - std::min(limit, used)});
}

}  // namespace

std::vector<CgroupMemory> CgroupMemoryLimits(const std::string& root) {
  std::vector<CgroupMemory> limits;
  for (const std::string& folder :
       FindFolders(root, /*version2=*/true, "memory")) {
    uint64_t limit = kNoLimit;
    uint64_t throttled = kNoLimit;
    uint64_t used = 0;
    ReadFirstNumber(folder + "/memory.max", &limit);
    // Above it a process is held up so that it hardly moves.
    ReadFirstNumber(folder + "/memory.high", &throttled);
    ReadFirstNumber(folder + "/memory.current", &used);
    std::map<std::string, uint64_t> stat = ReadNumbers(folder + "/memory.stat");
    used = NotReclaimable(
        used,
        stat["inactive_file"] + stat["active_file"] + stat["slab_reclaimable"],
        stat["file_dirty"] + stat["file_writeback"]);
    AddMemory(folder, std::min(limit, throttled), used, &limits);
  }
  bool first = true;
  for (const std::string& folder :
       FindFolders(root, /*version2=*/false, "memory")) {
    uint64_t shared = 1;
    ReadFirstNumber(folder + "/memory.use_hierarchy", &shared);
    if (!first && shared == 0) break;  // Its limit is not for those below it.
    uint64_t limit = kNoLimit;
    uint64_t used = 0;
    ReadFirstNumber(folder + "/memory.limit_in_bytes", &limit);
    ReadFirstNumber(folder + "/memory.usage_in_bytes", &used);
    std::map<std::string, uint64_t> stat = ReadNumbers(folder + "/memory.stat");
    // Also of cgroups above that are not mounted here.
    const auto lowest = stat.find("hierarchical_memory_limit");
    if (first && lowest != stat.end()) limit = std::min(limit, lowest->second);
    used = NotReclaimable(
        used, stat["total_inactive_file"] + stat["total_active_file"],
        stat["total_dirty"] + stat["total_writeback"]);
    AddMemory(folder, limit, used, &limits);
    first = false;
  }
  return limits;
}

std::vector<CgroupCpus> CgroupCpuLimits(const std::string& root) {
  std::vector<CgroupCpus> limits;
  const auto add = [&](const std::string& folder, uint64_t quota,
                       uint64_t period) {
    if (quota == 0 || period == 0) return;
    const uint64_t cpus = quota / period + (quota % period != 0 ? 1 : 0);
    limits.push_back(
        {.id = IdOf(folder),
         .cpus = static_cast<int>(std::min<uint64_t>(cpus, 1 << 20))});
  };
  for (const std::string& folder :
       FindFolders(root, /*version2=*/true, "cpu")) {
    // "max 100000" or "150000 100000"
    const std::vector<std::string> numbers =
        absl::StrSplit(FirstLine(folder + "/cpu.max"), ' ');
    uint64_t quota;
    uint64_t period;
    if (numbers.size() == 2 && absl::SimpleAtoi(numbers[0], &quota) &&
        absl::SimpleAtoi(numbers[1], &period)) {
      add(folder, quota, period);
    }
  }
  for (const std::string& folder :
       FindFolders(root, /*version2=*/false, "cpu")) {
    uint64_t quota;
    uint64_t period;
    if (ReadFirstNumber(folder + "/cpu.cfs_quota_us", &quota) &&
        ReadFirstNumber(folder + "/cpu.cfs_period_us", &period)) {
      add(folder, quota, period);
    }
  }
  return limits;
}

std::vector<CgroupTasks> CgroupTaskLimits(const std::string& root) {
  std::vector<CgroupTasks> limits;
  for (const bool version2 : {true, false}) {
    for (const std::string& folder : FindFolders(root, version2, "pids")) {
      CgroupTasks tasks = {.file = folder + "/pids.max"};
      if (!ReadFirstNumber(tasks.file, &tasks.limit)) continue;
      ReadFirstNumber(folder + "/pids.current", &tasks.running);
      limits.push_back(std::move(tasks));
    }
  }
  return limits;
}

}  // namespace ringfleet::cluster
