// SPDX-License-Identifier: Apache-2.0
// The reason why an epoch ends.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_EPOCH_CAUSE_H_
#define RINGFLEET_CLUSTER_TRANSPORT_EPOCH_CAUSE_H_

#include <atomic>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "kernels/mutex.h"

namespace ringfleet::cluster {

// Keeps the first recorded cause. aborted() costs one load, so that it can be
// called for every frame. Thread-safe.
class EpochCause {
 public:
  struct Record {
    absl::Status status;  // OK: the epoch has not ended.
    std::string origin;   // Text for the peers.
    int suspect = 0;      // The rank to blame.
  };

  bool aborted() const { return aborted_.load(std::memory_order_acquire); }

  // Keeps `record` and returns true if it is the first. Otherwise drops it.
  bool Set(Record record) {
    MutexLock lock(&mu_);
    if (!record_.status.ok()) return false;
    record_ = std::move(record);
    aborted_.store(true, std::memory_order_release);
    return true;
  }

  Record Get() const {
    MutexLock lock(&mu_);
    return record_;
  }
  absl::Status status() const {
    MutexLock lock(&mu_);
    return record_.status;
  }

 private:
  std::atomic<bool> aborted_{false};
  mutable Mutex mu_;
  Record record_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_EPOCH_CAUSE_H_
