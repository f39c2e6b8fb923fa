// SPDX-License-Identifier: Apache-2.0
#include "kernels/aligned_buffer.h"

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <utility>

#include "kernels/check.h"

namespace ringfleet::kernels {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

AlignedBuffer::AlignedBuffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  RF_CHECK(bytes <= std::numeric_limits<size_t>::max() - kAlignment);
  // calloc takes large blocks from fresh, untouched pages; aligned_alloc
  // followed by memset would make them resident on this thread's node.
  allocation_ = std::calloc(1, bytes + kAlignment - 1);
  RF_CHECK(allocation_ != nullptr);
  const uintptr_t address = reinterpret_cast<uintptr_t>(allocation_);
  data_ = static_cast<char*>(allocation_) + (-address & (kAlignment - 1));
}

AlignedBuffer::~AlignedBuffer() { std::free(allocation_); }

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : allocation_(std::exchange(other.allocation_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this != &other) {
    std::free(allocation_);
    allocation_ = std::exchange(other.allocation_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

}  // namespace ringfleet::kernels
