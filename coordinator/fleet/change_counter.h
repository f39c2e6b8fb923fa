// SPDX-License-Identifier: Apache-2.0
// Lets threads wait for a change of a fleet whose state is spread over objects
// with locks of their own. A waiter reads count(), looks at the objects, and
// waits for another count: it misses no change, and holds no lock meanwhile.
#ifndef RINGFLEET_COORDINATOR_FLEET_CHANGE_COUNTER_H_
#define RINGFLEET_COORDINATOR_FLEET_CHANGE_COUNTER_H_

#include <cstdint>

#include "cluster/process/deadline.h"
#include "kernels/mutex.h"

namespace ringfleet::coordinator {

// Thread-safe. Note() is called without locks held.
class ChangeCounter {
 public:
  uint64_t count() const {
    MutexLock lock(&mu_);
    return count_;
  }

  void Note() {
    MutexLock lock(&mu_);
    ++count_;
    changed_.NotifyAll();
  }

  // Waits until the count differs from `seen`, and returns it. Returns `seen`
  // if the deadline passes first.
  uint64_t Await(uint64_t seen, cluster::Deadline deadline) {
    MutexLock lock(&mu_);
    while (count_ == seen && !deadline.Expired()) {
      if (deadline.infinite()) {
        changed_.Wait(&mu_);
      } else {
        changed_.WaitUntil(&mu_, deadline.when());
      }
    }
    return count_;
  }

 private:
  mutable Mutex mu_;
  CondVar changed_;
  uint64_t count_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_CHANGE_COUNTER_H_
