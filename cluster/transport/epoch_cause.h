// SPDX-License-Identifier: Apache-2.0
// The one reason why an epoch ends.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_EPOCH_CAUSE_H_
#define RINGFLEET_CLUSTER_TRANSPORT_EPOCH_CAUSE_H_

#include <atomic>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "kernels/mutex.h"

namespace ringfleet::cluster {

// Keeps the first cause that is recorded. Thread-safe: the lock guards the
// texts, and aborted() costs one load, so that every frame can ask it.
class EpochCause {
 public:
  struct Record {
    absl::Status status;  // OK while nothing has ended the epoch.
    std::string origin;   // The text that peers read.
    int suspect = 0;      // The rank to blame.
  };

  bool aborted() const { return aborted_.load(std::memory_order_acquire); }

  // Returns true for the first record. Later records are dropped.
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
