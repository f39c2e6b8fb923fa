// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_ALIGNED_BUFFER_H_
#define RINGFLEET_KERNELS_ALIGNED_BUFFER_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/page_region.h"

namespace ringfleet::kernels {

// Owns zeroed memory, aligned to 64 bytes (a cache line, an AVX-512 vector).
// Pages become resident when they are first touched. Large buffers and the
// buffers of a BufferArena lie in a PageRegion. Movable.
class AlignedBuffer {
 public:
  // Allocates a size that comes from input.
  //
  // Errors: RESOURCE_EXHAUSTED, with the size, when the system gives no more
  // memory or address space (ulimit -v).
  static absl::StatusOr<AlignedBuffer> Allocate(size_t bytes);

  AlignedBuffer() = default;
  // Allocates a size that is known to be small. Aborts without memory.
  explicit AlignedBuffer(size_t bytes);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;

  char* data() { return data_; }
  const char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  friend class BufferArena;

  // Takes a part of a region: whole pages that no other buffer has.
  AlignedBuffer(std::shared_ptr<const PageRegion> region, char* data,
                size_t bytes)
      : region_(std::move(region)), data_(data), size_(bytes) {}

  // Returns false, and leaves the buffer empty, without memory.
  bool TryAllocate(size_t bytes);

  void Free();

  // Invariant: data_ lies in allocation_ or in region_.
  void* allocation_ = nullptr;  // For free().
  std::shared_ptr<const PageRegion> region_;
  char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_ALIGNED_BUFFER_H_
