// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_RESTART_PACE_H_
#define RINGFLEET_COORDINATOR_CLI_RESTART_PACE_H_

#include <deque>
#include <optional>

#include "absl/time/time.h"
#include "cluster/process/deadline.h"

namespace ringfleet::coordinator::cli {

// Decides when a worker process that has died starts again. Pure logic, not
// thread-safe.
class RestartPace {
 public:
  using TimePoint = cluster::Deadline::Clock::time_point;

  // A worker that dies kMaxDeaths times within kWindow is given up. A job that
  // kills its worker costs three deaths before it ends alone. The window holds
  // several loads of a large shard.
  static constexpr int kMaxDeaths = 5;
  static constexpr absl::Duration kWindow = absl::Minutes(10);
  // Pause after the first death of a window. Each further death doubles it.
  static constexpr absl::Duration kFirstPause = absl::Milliseconds(100);

  // Notes a death. Returns the pause before the next start. Nothing: the worker
  // is given up.
  std::optional<absl::Duration> NoteDeath(TimePoint now) {
    const TimePoint oldest = now - absl::ToChronoNanoseconds(kWindow);
    while (!deaths_.empty() && deaths_.front() <= oldest) deaths_.pop_front();
    deaths_.push_back(now);
    const auto deaths = static_cast<int>(deaths_.size());
    if (deaths >= kMaxDeaths) return std::nullopt;
    return kFirstPause * (1 << (deaths - 1));
  }

 private:
  std::deque<TimePoint> deaths_;  // Within the window, oldest first.
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_RESTART_PACE_H_
