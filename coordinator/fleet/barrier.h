// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_FLEET_BARRIER_H_
#define RINGFLEET_COORDINATOR_FLEET_BARRIER_H_

#include <cstddef>

#include "kernels/mutex.h"

namespace ringfleet::coordinator {

// Holds `count` threads until all of them have arrived or one has failed.
// Thread-safe.
class Barrier {
 public:
  explicit Barrier(size_t count) : missing_(count) {}
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

#endif  // RINGFLEET_COORDINATOR_FLEET_BARRIER_H_
