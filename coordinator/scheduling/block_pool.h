// SPDX-License-Identifier: Apache-2.0
// The blocks of one data group's latent cache, as the coordinator counts them
// (PagedAttention, arXiv:2309.06180).
#ifndef RINGFLEET_COORDINATOR_SCHEDULING_BLOCK_POOL_H_
#define RINGFLEET_COORDINATOR_SCHEDULING_BLOCK_POOL_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace ringfleet::coordinator {

// Numbers blocks from 0. A block with owners is in use. Not thread-safe.
class BlockPool {
 public:
  explicit BlockPool(uint32_t blocks);

  // Takes `count` free blocks and appends them to `blocks`, with one owner
  // each. Requires count <= free().
  void Take(uint32_t count, std::vector<uint32_t>* blocks);

  // Adds an owner to each block. Requires that they are in use.
  void Share(absl::Span<const uint32_t> blocks);

  // Takes an owner from each block. A block is free when its last owner has
  // returned it. Requires that they are in use.
  void Return(absl::Span<const uint32_t> blocks);

  uint32_t free() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t total() const { return static_cast<uint32_t>(owners_.size()); }

 private:
  std::vector<uint32_t> owners_;  // Number of owners, by block.
  std::vector<uint32_t> free_;    // The next one to take is the last.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SCHEDULING_BLOCK_POOL_H_
