// SPDX-License-Identifier: Apache-2.0
#include "worker/service/parent_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "kernels/check.h"

namespace ringfleet::worker {

ParentWatch::ParentWatch(int parent_fd) {
  if (parent_fd < 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  RF_CHECK(pipe2(wake_, O_CLOEXEC) == 0);
  thread_ = std::thread([this, parent_fd] {
    // Nothing is ever written to either pipe: an event is a closed end.
    pollfd ends[2] = {{.fd = parent_fd, .events = POLLIN},
                      {.fd = wake_[0], .events = POLLIN}};
    while (poll(ends, 2, -1) < 0) {
    }
    if (ends[0].revents != 0) kill(getpid(), SIGTERM);
  });
}

ParentWatch::~ParentWatch() {
  if (!thread_.joinable()) return;
  close(wake_[1]);
  thread_.join();
  close(wake_[0]);
}

}  // namespace ringfleet::worker
