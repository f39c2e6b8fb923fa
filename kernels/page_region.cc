// SPDX-License-Identifier: Apache-2.0
#include "kernels/page_region.h"

#include <sys/mman.h>

#include <cstdint>
#include <limits>

namespace ringfleet::kernels {

std::unique_ptr<PageRegion> PageRegion::Map(size_t bytes) {
  if (bytes > std::numeric_limits<size_t>::max() - 2 * kHugePageBytes) {
    return nullptr;
  }
  const size_t mapped = bytes + kHugePageBytes;
  void* const mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  std::unique_ptr<PageRegion> region(new PageRegion);
  region->mapping_ = mapping;
  region->mapped_bytes_ = mapped;
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  region->data_ =
      static_cast<char*>(mapping) + (-address & (kHugePageBytes - 1));
  region->size_ = bytes;
  // A hint: without huge pages everything works as well, only slower.
  const size_t whole = bytes / kHugePageBytes * kHugePageBytes;
  if (whole > 0)
    static_cast<void>(madvise(region->data_, whole, MADV_HUGEPAGE));
  return region;
}

PageRegion::~PageRegion() { munmap(mapping_, mapped_bytes_); }

void PageRegion::Discard(char* begin, size_t bytes) const {
  static_cast<void>(madvise(begin, bytes, MADV_DONTNEED));
}

}  // namespace ringfleet::kernels
