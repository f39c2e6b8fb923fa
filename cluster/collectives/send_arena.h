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

// Memory for elements that a communicator encodes, to send or to keep.
// Operations use the kBlocks blocks in turn, so an operation waits only for
// frames sent kBlocks operations earlier. The arena grows until it holds the
// largest operation, then allocates nothing. It may be destroyed while frames
// still point at it. Only the thread that calls the operations may use it.
class SendArena {
 public:
  // Several blocks, because one-shot operations follow each other faster than a
  // slow link sends their frames.
  static constexpr size_t kBlocks = 4;

  struct Block {
    char* data() const { return memory; }

    char* memory = nullptr;  // Owned by `ledger`.
    size_t capacity = 0;
    PayloadLedger ledger;
  };

  // Returns a block of at least `bytes` at which no frame points. Waits for it
  // if necessary. Errors: those of Transport::AwaitReleased.
  absl::StatusOr<Block*> Next(Transport& transport, size_t bytes,
                              Deadline deadline);

  // Returns the ledger of frames that point at the caller's memory.
  PayloadLedger& caller() { return caller_; }

  // Returns memory of `bytes` that are never sent. The next call returns the
  // same memory or frees it.
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
