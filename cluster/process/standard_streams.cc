// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace ringfleet::cluster {

void OpenStandardStreams() {
  // In this order each gets the number that is missing, the lowest free one.
  // A write to what is open for reading only gives EBADF.
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // Without /dev/null there is nothing better than what the caller wanted.
    if (open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) != fd) {
      return;
    }
  }
}

}  // namespace ringfleet::cluster
