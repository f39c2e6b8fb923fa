// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/forced_exit.h"

#include <unistd.h>

#include "cluster/process/log.h"

namespace ringfleet::cluster {

ForcedExit::ForcedExit() : thread_([this] { Loop(); }) {}

ForcedExit::~ForcedExit() {
  {
    MutexLock lock(&mu_);
    ended_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void ForcedExit::After(absl::Duration duration) {
  MutexLock lock(&mu_);
  deadline_ = Deadline::After(duration);
  changed_.NotifyAll();
}

void ForcedExit::Loop() {
  MutexLock lock(&mu_);
  while (!ended_ && !deadline_.Expired()) {
    if (deadline_.infinite()) {
      changed_.Wait(&mu_);
    } else {
      changed_.WaitUntil(&mu_, deadline_.when());
    }
  }
  if (ended_) return;
  RF_LOG(kError, "the process does not end in order: ending it at once");
  _exit(1);
}

}  // namespace ringfleet::cluster
