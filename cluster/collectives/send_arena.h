// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_SEND_ARENA_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_SEND_ARENA_H_

#include <array>
#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "cluster/process/deadline.h"
#include "cluster/transport/payload_ledger.h"
#include "cluster/transport/transport.h"

namespace ringfleet::cluster {

// Memory for elements that a communicator encodes, to send or to keep. Blocks
// take turns, so an operation only waits for the frames of an operation a few
// before it. The arena grows to the largest operation, then allocates nothing.
// The arena may be destroyed while frames are under way. Belongs to the thread
// of the operations.
class SendArena {
 public:
  // One-shot operations follow each other faster than a slow link drains.
  static constexpr size_t kBlocks = 4;

  struct Block {
    char* data() const { return memory; }

    char* memory = nullptr;  // Kept by the ledger.
    size_t capacity = 0;
    PayloadLedger ledger;
  };

  // Returns a block of at least `bytes` that nothing refers to. Errors: those
  // of Transport::AwaitReleased.
  absl::StatusOr<Block*> Next(Transport& transport, size_t bytes,
                              Deadline deadline);

  // Counts the references to the caller's memory if it is sent without a copy.
  PayloadLedger& caller() { return caller_; }

  // Returns memory for bytes that are never sent. Every operation gets the same
  // memory.
  char* Scratch(size_t bytes);

 private:
  std::array<Block, kBlocks> blocks_;
  size_t next_ = 0;
  PayloadLedger caller_;
  std::unique_ptr<char[]> scratch_;
  size_t scratch_bytes_ = 0;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_SEND_ARENA_H_
