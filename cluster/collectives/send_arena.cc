// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/send_arena.h"

#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {

absl::StatusOr<SendArena::Block*> SendArena::Next(Transport& transport,
                                                  size_t bytes,
                                                  Deadline deadline) {
  Block& block = blocks_[next_];
  next_ = (next_ + 1) % kBlocks;
  if (!block.ledger.released()) {
    RF_RETURN_IF_ERROR(transport.AwaitReleased(block.ledger, deadline));
  }
  if (block.capacity < bytes) {
    block.memory =
        block.ledger.Keep(std::make_unique_for_overwrite<char[]>(bytes));
    block.capacity = bytes;
  }
  return &block;
}

char* SendArena::Scratch(size_t bytes) {
  if (scratch_bytes_ < bytes) {
    scratch_.reset();  // Not both at a time.
    scratch_ = std::make_unique_for_overwrite<char[]>(bytes);
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

}  // namespace ringfleet::cluster
