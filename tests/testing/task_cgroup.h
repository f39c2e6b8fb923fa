// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_TESTING_TASK_CGROUP_H_
#define RINGFLEET_TESTS_TESTING_TASK_CGROUP_H_

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace ringfleet::testing {

// A cgroup that limits the threads of the processes in it. Make it where the
// system has cgroups of version 1 or 2 and lets this process write there.
class TaskCgroup {
 public:
  explicit TaskCgroup(int most_tasks) {
    // Version 1 has a folder for each controller.
    for (const char* root : {"/sys/fs/cgroup/pids", "/sys/fs/cgroup"}) {
      const std::string folder =
          std::string(root) + "/ringfleet-test-" + std::to_string(getpid());
      if (mkdir(folder.c_str(), 0755) != 0) continue;
      const std::string limit = folder + "/pids.max";
      if (std::filesystem::exists(limit) &&
          Write(limit, std::to_string(most_tasks))) {
        folder_ = folder;
        return;
      }
      rmdir(folder.c_str());
    }
  }
  ~TaskCgroup() { rmdir(folder_.c_str()); }
  TaskCgroup(const TaskCgroup&) = delete;
  TaskCgroup& operator=(const TaskCgroup&) = delete;

  // Returns false if there is no cgroup, or if the process cannot enter it.
  // Processes must have ended before the cgroup does.
  bool Add(pid_t pid) const {
    return !folder_.empty() &&
           Write(folder_ + "/cgroup.procs", std::to_string(pid));
  }

 private:
  static bool Write(const std::string& path, const std::string& text) {
    std::ofstream file(path);
    file << text << std::flush;
    return file.good();
  }

  std::string folder_;  // Empty: there is no cgroup.
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_TASK_CGROUP_H_
