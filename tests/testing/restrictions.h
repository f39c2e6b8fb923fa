// SPDX-License-Identifier: Apache-2.0
// What root is spared and users meet: permissions of files, and full disks.
#ifndef RINGFLEET_TESTS_TESTING_RESTRICTIONS_H_
#define RINGFLEET_TESTS_TESTING_RESTRICTIONS_H_

#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "kernels/check.h"

namespace ringfleet::testing {

// While in scope, this thread and those that it starts may do with files what
// their permissions say; root may otherwise do anything.
class BoundByPermissions {
 public:
  BoundByPermissions() {
    RF_CHECK(syscall(SYS_capget, &header_, before_) == 0);
    __user_cap_data_struct bound[2] = {before_[0], before_[1]};
    bound[0].effective &=
        ~((1u << CAP_DAC_OVERRIDE) | (1u << CAP_DAC_READ_SEARCH));
    RF_CHECK(syscall(SYS_capset, &header_, bound) == 0);
  }
  ~BoundByPermissions() {
    RF_CHECK(syscall(SYS_capset, &header_, before_) == 0);
  }
  BoundByPermissions(const BoundByPermissions&) = delete;
  BoundByPermissions& operator=(const BoundByPermissions&) = delete;

 private:
  __user_cap_header_struct header_ = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct before_[2] = {};
};

// Calls `body` where an empty file system of `bytes` is mounted on `folder`. It
// exists for one thread and those that this starts, and ends with them. Returns
// why it cannot be made here; then `body` was not called. Without a message
// everything went well.
inline std::string WithSmallDisk(const std::string& folder, uint64_t bytes,
                                 const std::function<void()>& body) {
  std::string why;
  std::thread([&] {
    const std::string size = "size=" + std::to_string(bytes);
    // The second keeps the third from the mounts of everyone else.
    if (unshare(CLONE_NEWNS) != 0 ||
        mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", folder.c_str(), "tmpfs", 0, size.c_str()) != 0) {
      why = std::string("no file system can be mounted here: ") +
            std::strerror(errno);
      return;
    }
    body();
  }).join();
  return why;
}

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_RESTRICTIONS_H_
