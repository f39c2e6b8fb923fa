// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_PROCESS_FORCED_EXIT_H_
#define RINGFLEET_CLUSTER_PROCESS_FORCED_EXIT_H_

#include <thread>

#include "absl/time/time.h"
#include "cluster/process/deadline.h"
#include "kernels/mutex.h"

namespace ringfleet::cluster {

// The time that a daemon gets to end. Launch scripts wait a second longer
// before they kill it.
inline constexpr absl::Duration kLongestEnd = absl::Seconds(9);

// Ends the process with code 1 if an orderly end takes too long, such as one
// that waits for calls that never return. Has a thread from the start, since
// later there may be none to be had. Thread-safe.
class ForcedExit {
 public:
  ForcedExit();
  ~ForcedExit();  // The end has come in order.
  ForcedExit(const ForcedExit&) = delete;
  ForcedExit& operator=(const ForcedExit&) = delete;

  // Ends the process `duration` from here on, unless this object is destroyed
  // before.
  void After(absl::Duration duration);

 private:
  void Loop();

  Mutex mu_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  Deadline deadline_ ABSL_GUARDED_BY(mu_) = Deadline::Infinite();

  std::thread thread_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PROCESS_FORCED_EXIT_H_
