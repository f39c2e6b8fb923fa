// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_BUFFER_ARENA_H_
#define RINGFLEET_KERNELS_BUFFER_ARENA_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/aligned_buffer.h"
#include "kernels/page_region.h"

namespace ringfleet::kernels {

// Makes buffers that lie one behind the other, so that huge pages hold the end
// of one and the beginning of the next: a matrix of some MiB alone has an
// eighth of its bytes in small pages. Buffers outlive the arena, and each gives
// its memory back when it ends, but for the huge pages that it shares and for
// address space. One thread at a time.
class BufferArena {
 public:
  // `expected_bytes` are what its buffers take together, as far as is known.
  explicit BufferArena(size_t expected_bytes) : expected_(expected_bytes) {}

  // As AlignedBuffer::Allocate.
  absl::StatusOr<AlignedBuffer> Allocate(size_t bytes);

 private:
  size_t expected_;
  std::shared_ptr<const PageRegion> region_;
  size_t used_ = 0;  // Of region_.
};

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_BUFFER_ARENA_H_
