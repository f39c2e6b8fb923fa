// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_ALIGNED_BUFFER_H_
#define RINGFLEET_KERNELS_ALIGNED_BUFFER_H_

#include <cstddef>

namespace ringfleet::kernels {

// Owns zeroed memory, aligned to 64 bytes (a cache line, an AVX-512 vector).
// Pages become resident when they are first touched. Movable.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Aborts only when the address space is exhausted; callers bound `bytes`.
  explicit AlignedBuffer(size_t bytes);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;

  char* data() { return data_; }
  const char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void* allocation_ = nullptr;  // What free() takes; data_ lies inside.
  char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_ALIGNED_BUFFER_H_
