// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_TRANSPORT_PAYLOAD_LEDGER_H_
#define RINGFLEET_CLUSTER_TRANSPORT_PAYLOAD_LEDGER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace ringfleet::cluster {

// Counts the references to a piece of payload memory. A transport sends slices
// that point at the sender's memory, and the memory is the sender's again when
// the last slice is released. A slice may be released after the ledger has
// gone, so the count lives as long as any reference. Thread-safe.
class PayloadLedger {
 public:
  PayloadLedger() : count_(new Count) {}
  ~PayloadLedger() { Drop(count_); }
  PayloadLedger(const PayloadLedger&) = delete;
  PayloadLedger& operator=(const PayloadLedger&) = delete;

  // True when nothing refers to the memory. Later writes to it are ordered
  // behind all reads.
  bool released() const {
    return count_->references.load(std::memory_order_acquire) == 1;
  }

  // Gives the ledger memory. It lives until nothing refers to it any more, even
  // when the ledger has gone. Requires released().
  char* Keep(std::unique_ptr<char[]> memory) {
    count_->memory = std::move(memory);
    return count_->memory.get();
  }

  // Adds a reference. Give it to Drop exactly once, from any thread.
  void* Hold() {
    count_->references.fetch_add(1, std::memory_order_relaxed);
    return count_;
  }
  static void Drop(void* reference) {
    auto* const count = static_cast<Count*>(reference);
    if (count->references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete count;
    }
  }

 private:
  struct Count {
    std::atomic<int64_t> references{1};
    std::unique_ptr<char[]> memory;
  };
  Count* const count_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_PAYLOAD_LEDGER_H_
