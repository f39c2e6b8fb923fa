// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/block_pool.h"

#include "kernels/check.h"

namespace ringfleet::coordinator {

BlockPool::BlockPool(uint32_t blocks) : owners_(blocks, 0) {
  free_.reserve(blocks);
  for (uint32_t block = blocks; block-- > 0;) free_.push_back(block);
}

void BlockPool::Take(uint32_t count, std::vector<uint32_t>* blocks) {
  RF_CHECK(count <= free());
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t block = free_.back();
    free_.pop_back();
    owners_[block] = 1;
    blocks->push_back(block);
  }
}

void BlockPool::Share(absl::Span<const uint32_t> blocks) {
  for (const uint32_t block : blocks) {
    RF_CHECK(owners_.at(block) > 0);
    ++owners_[block];
  }
}

void BlockPool::Return(absl::Span<const uint32_t> blocks) {
  for (const uint32_t block : blocks) {
    RF_CHECK(owners_.at(block) > 0);
    if (--owners_[block] == 0) free_.push_back(block);
  }
}

}  // namespace ringfleet::coordinator
