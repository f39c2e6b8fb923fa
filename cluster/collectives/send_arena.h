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

// Memory of what a communicator sends in another form than its caller holds
// it, or keeps of what has come. Blocks take turns: an operation does not wait
// until its own frames have left, only until those of a few operations before
// have. Grows to the largest operation, then allocates nothing. May go while
// frames are on their way. Belongs to the thread of the operations.
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

  // A block of at least `bytes` that nothing refers to. Errors: those of
  // Transport::AwaitReleased.
  absl::StatusOr<Block*> Next(Transport& transport, size_t bytes,
                              Deadline deadline);

  // Of the caller's own memory, where that is sent as it lies.
  PayloadLedger& caller() { return caller_; }

  // Memory of what is never sent, for one operation: the same each time.
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
