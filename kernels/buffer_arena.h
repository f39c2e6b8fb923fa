// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_BUFFER_ARENA_H_
#define RINGFLEET_KERNELS_BUFFER_ARENA_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/aligned_buffer.h"
#include "kernels/page_region.h"

namespace ringfleet::kernels {

// Makes buffers that lie one behind the other, so that a huge page holds the
// end of one and the beginning of the next. A matrix of some MiB by itself
// would have an eighth of its bytes in small pages. Buffers outlive the arena.
// A buffer gives its memory back when it ends, except for address space and the
// huge pages that it shares. One thread at a time.
class BufferArena {
 public:
  // `expected_bytes` is the sum of the buffers' sizes, as far as it is known.
  explicit BufferArena(size_t expected_bytes) : expected_(expected_bytes) {}

  // Errors: those of AlignedBuffer::Allocate.
  absl::StatusOr<AlignedBuffer> Allocate(size_t bytes);

 private:
  size_t expected_;
  std::shared_ptr<const PageRegion> region_;
  size_t used_ = 0;  // Bytes of region_.
};

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_BUFFER_ARENA_H_
