// SPDX-License-Identifier: Apache-2.0
#include "kernels/aligned_buffer.h"

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

// From this size on a buffer has a region of its own.
constexpr size_t kRegionBytes = 2 * PageRegion::kHugePageBytes;

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
  if (PageRegion::kInUse && bytes >= kRegionBytes) {
    region_ = PageRegion::Map(bytes);
    if (region_ == nullptr) return false;
    data_ = region_->data();
  } else {
    if (bytes > std::numeric_limits<size_t>::max() - kAlignment) return false;
    allocation_ = std::calloc(1, bytes + kAlignment - 1);
    if (allocation_ == nullptr) return false;
    const uintptr_t address = reinterpret_cast<uintptr_t>(allocation_);
    data_ = static_cast<char*>(allocation_) + (-address & (kAlignment - 1));
  }
  size_ = bytes;
  return true;
}

void AlignedBuffer::Free() {
  std::free(allocation_);
  // Others' parts keep the region.
  if (region_ != nullptr && region_.use_count() > 1) {
    region_->Discard(data_, size_);
  }
  region_.reset();
}

AlignedBuffer::~AlignedBuffer() { Free(); }

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : allocation_(std::exchange(other.allocation_, nullptr)),
      region_(std::move(other.region_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this != &other) {
    Free();
    allocation_ = std::exchange(other.allocation_, nullptr);
    region_ = std::move(other.region_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

}  // namespace ringfleet::kernels
