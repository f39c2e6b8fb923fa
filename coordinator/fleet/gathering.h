// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_FLEET_GATHERING_H_
#define RINGFLEET_COORDINATOR_FLEET_GATHERING_H_

#include <cstddef>

#include "kernels/mutex.h"

namespace ringfleet::coordinator {

// Lets threads go on when all have come, or one will not come.
class Gathering {
 public:
  explicit Gathering(size_t count) : missing_(count) {}
  void AwaitOthers() {
    MutexLock lock(&mu_);
    --missing_;
    changed_.NotifyAll();
    while (missing_ > 0 && !failed_) changed_.Wait(&mu_);
  }
  void Fail() {
    MutexLock lock(&mu_);
    failed_ = true;
    changed_.NotifyAll();
  }

 private:
  Mutex mu_;
  CondVar changed_;
  size_t missing_ ABSL_GUARDED_BY(mu_);
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_GATHERING_H_
