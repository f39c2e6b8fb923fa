// SPDX-License-Identifier: Apache-2.0
#include "kernels/buffer_arena.h"

#include <algorithm>
#include <limits>

namespace ringfleet::kernels {

absl::StatusOr<AlignedBuffer> BufferArena::Allocate(size_t bytes) {
  constexpr size_t kPage = PageRegion::kPageBytes;
  if (!PageRegion::kInUse || bytes < kPage ||
      bytes > std::numeric_limits<size_t>::max() - kPage) {
    return AlignedBuffer::Allocate(bytes);
  }
  const size_t pages = (bytes + kPage - 1) / kPage * kPage;
  if (region_ == nullptr || region_->size() - used_ < pages) {
    // Address space for what the pages' ends add.
    const size_t wanted = expected_ + expected_ / 64;
    region_ = PageRegion::Map(std::max(pages, wanted));
    used_ = 0;
    if (region_ == nullptr) return AlignedBuffer::Allocate(bytes);
  }
  char* const data = region_->data() + used_;
  used_ += pages;
  expected_ -= std::min(expected_, pages);
  return AlignedBuffer(region_, data, bytes);
}

}  // namespace ringfleet::kernels
