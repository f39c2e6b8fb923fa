// SPDX-License-Identifier: Apache-2.0
// A point on the steady clock by which an operation must have ended. Only the
// remaining duration travels between processes, because the clocks of hosts
// differ.
#ifndef RINGFLEET_CLUSTER_PROCESS_DEADLINE_H_
#define RINGFLEET_CLUSTER_PROCESS_DEADLINE_H_

#include <chrono>

#include "absl/time/time.h"

namespace ringfleet::cluster {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline Infinite() { return Deadline(Clock::time_point::max()); }
  static Deadline After(absl::Duration duration,
                        Clock::time_point now = Clock::now()) {
    if (duration == absl::InfiniteDuration()) return Infinite();
    return Deadline(now + absl::ToChronoNanoseconds(duration));
  }

  explicit Deadline(Clock::time_point when) : when_(when) {}

  Clock::time_point when() const { return when_; }
  bool infinite() const { return when_ == Clock::time_point::max(); }
  bool Expired(Clock::time_point now = Clock::now()) const {
    return now >= when_;
  }
  // Returns zero after the deadline, and InfiniteDuration() without one.
  absl::Duration Remaining(Clock::time_point now = Clock::now()) const {
    if (infinite()) return absl::InfiniteDuration();
    return now >= when_ ? absl::ZeroDuration() : absl::FromChrono(when_ - now);
  }

 private:
  Clock::time_point when_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PROCESS_DEADLINE_H_
