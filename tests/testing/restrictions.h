// SPDX-License-Identifier: Apache-2.0
// Failures that users meet and root does not: permissions of files, and full
// disks.
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

// Binds this thread, and threads that it starts, to the permissions of files
// while in scope. Without it, root may access any file.
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

// Calls `body` on a thread for which an empty file system of `bytes` bytes is
// mounted on `folder`. Only this thread, and threads that it starts, see the
// file system. The file system ends with these threads. Returns an empty text
// on success. Returns the reason if the file system cannot be mounted; `body`
// is not called then.
inline std::string WithSmallDisk(const std::string& folder, uint64_t bytes,
                                 const std::function<void()>& body) {
  std::string why;
  std::thread([&] {
    const std::string size = "size=" + std::to_string(bytes);
    // A private mount namespace hides the tmpfs from other processes.
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
