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
// Pages become resident when they are first touched; large buffers, and those
// of a BufferArena, are of a PageRegion. Movable.
class AlignedBuffer {
 public:
  // For sizes that come from input. RESOURCE_EXHAUSTED, with the size: the
  // system gives no more memory or address space (ulimit -v).
  static absl::StatusOr<AlignedBuffer> Allocate(size_t bytes);

  AlignedBuffer() = default;
  // For sizes known to be small: aborts without memory.
  explicit AlignedBuffer(size_t bytes);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;

  char* data() { return data_; }
  const char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  friend class BufferArena;

  // A part of a region: whole pages that are its alone.
  AlignedBuffer(std::shared_ptr<const PageRegion> region, char* data,
                size_t bytes)
      : region_(std::move(region)), data_(data), size_(bytes) {}

  // False, and still empty, without memory.
  bool TryAllocate(size_t bytes);

  void Free();

  // data_ lies in one of them.
  void* allocation_ = nullptr;  // What free() takes.
  std::shared_ptr<const PageRegion> region_;
  char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_ALIGNED_BUFFER_H_
