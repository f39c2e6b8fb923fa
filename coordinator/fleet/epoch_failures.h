// SPDX-License-Identifier: Apache-2.0
// The failures that the ranks of an epoch report, and which of them is the
// cause of its end: when one rank fails, its peers report the echo, often
// before the rank itself does.
#ifndef RINGFLEET_COORDINATOR_FLEET_EPOCH_FAILURES_H_
#define RINGFLEET_COORDINATOR_FLEET_EPOCH_FAILURES_H_

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace ringfleet::coordinator {

enum class EpochPhase { kLoading, kConnecting, kRunning };

struct RankFailure {
  int rank = 0;
  absl::Status status;  // As reported by worker or connection.
  bool lost = false;    // Known to be gone.
  EpochPhase phase = EpochPhase::kLoading;
  bool stopping = false;  // The worker reports that it is being stopped.
};

// Pure logic, not thread-safe.
class EpochFailures {
 public:
  // `disconnected` returns whether the connection to a rank is down.
  explicit EpochFailures(std::function<bool(int)> disconnected)
      : disconnected_(std::move(disconnected)) {}

  // Keeps the first failure of each rank. A loss replaces a failure that is no
  // loss, and the news that the worker serves another coordinator replaces any.
  void Add(const RankFailure& failure);

  bool empty() const { return failures_.empty(); }
  // Ranks that have failed.
  size_t size() const { return failures_.size(); }

  // Returns the failure that explains the end best so far, or null. A worker
  // that serves another coordinator comes first, then a process that has gone,
  // then a worker's own error, then a possible echo
  // of another rank's failure.
  const RankFailure* Best() const;

  // Returns true if the failure is the loss of a process that no other failure
  // explains. A worker that serves another coordinator is lost, too.
  bool IsLoss(const RankFailure& failure) const;

  // Marks the failures that are losses. Connections that go down later do not
  // count.
  void Settle();
  // Ranks whose failures are marked as losses.
  std::vector<int> LostRanks() const;

 private:
  int Weight(const RankFailure& failure) const;

  const std::function<bool(int)> disconnected_;
  std::vector<RankFailure> failures_;
};

// Returns true if a load that failed with `status` would fail again.
bool IsIncurable(const absl::Status& status);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_EPOCH_FAILURES_H_
