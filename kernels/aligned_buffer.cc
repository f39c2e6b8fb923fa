// SPDX-License-Identifier: Apache-2.0
#include "kernels/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace ringfleet::kernels {
namespace {

constexpr size_t kAlignment = 64;

// Buffers from this size on begin at a huge page's border and ask for huge
// pages: one row of a product then misses 512 times fewer translations.
constexpr size_t kHugePageBytes = size_t{2} << 20;

size_t AlignmentOf(size_t bytes) {
  return bytes >= 2 * kHugePageBytes ? kHugePageBytes : kAlignment;
}

}  // namespace

absl::StatusOr<AlignedBuffer> AlignedBuffer::Allocate(size_t bytes) {
  AlignedBuffer buffer;
  if (!buffer.TryAllocate(bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("memory: the system refuses ", bytes, " bytes"));
  }
  return buffer;
}

AlignedBuffer::AlignedBuffer(size_t bytes) { RF_CHECK(TryAllocate(bytes)); }

bool AlignedBuffer::TryAllocate(size_t bytes) {
  if (bytes == 0) return true;
  const size_t alignment = AlignmentOf(bytes);
  if (bytes > std::numeric_limits<size_t>::max() - alignment) return false;
  // calloc takes large blocks from fresh, untouched pages; aligned_alloc
  // followed by memset would make them resident on this thread's node.
  allocation_ = std::calloc(1, bytes + alignment - 1);
  if (allocation_ == nullptr) return false;
  const uintptr_t address = reinterpret_cast<uintptr_t>(allocation_);
  data_ = static_cast<char*>(allocation_) + (-address & (alignment - 1));
  size_ = bytes;
  if (alignment == kHugePageBytes) {
    // A hint: without huge pages everything works as well, only slower.
    static_cast<void>(
        madvise(data_, bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE));
  }
  return true;
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
