// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_TRANSPORT_PAYLOAD_LEDGER_H_
#define RINGFLEET_CLUSTER_TRANSPORT_PAYLOAD_LEDGER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace ringfleet::cluster {

// Counts the references to a piece of payload memory. A transport sends slices
// that point at the sender's memory. The sender may write to its memory again
// when the last slice is released. A slice may be released after the ledger's
// destruction, so the count exists until the last reference is dropped.
// Thread-safe.
class PayloadLedger {
 public:
  PayloadLedger() : count_(new Count) {}
  ~PayloadLedger() { Drop(count_); }
  PayloadLedger(const PayloadLedger&) = delete;
  PayloadLedger& operator=(const PayloadLedger&) = delete;

  // Returns true if there is no reference to the memory. Later writes to the
  // memory are ordered behind all reads through references.
  bool released() const {
    return count_->references.load(std::memory_order_acquire) == 1;
  }

  // Makes the ledger own `memory` and returns its address. The memory is freed
  // when the ledger and all references are gone. Requires released().
  char* Keep(std::unique_ptr<char[]> memory) {
    count_->memory = std::move(memory);
    return count_->memory.get();
  }

  // Adds a reference and returns it. Pass the reference to Drop exactly once,
  // in any thread.
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
