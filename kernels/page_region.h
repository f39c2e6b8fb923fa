// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_PAGE_REGION_H_
#define RINGFLEET_KERNELS_PAGE_REGION_H_

#include <cstddef>
#include <memory>

#include "absl/base/config.h"

namespace ringfleet::kernels {

// Zeroed memory that comes from the system, not from the heap. The region
// begins at a huge page's border and asks for huge pages, so that a product
// misses 512 times fewer translations. Pages become resident when they are
// first touched.
class PageRegion {
 public:
  // AddressSanitizer sees the ends of heap memory only, so its builds take all
  // memory from the heap.
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
  static constexpr bool kInUse = false;
#else
  static constexpr bool kInUse = true;
#endif
  static constexpr size_t kPageBytes = 4096;
  static constexpr size_t kHugePageBytes = size_t{2} << 20;

  // Returns null when the system gives no more memory or address space.
  static std::unique_ptr<PageRegion> Map(size_t bytes);
  ~PageRegion();
  PageRegion(const PageRegion&) = delete;
  PageRegion& operator=(const PageRegion&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }

  // Gives the memory of whole pages back. The pages read as 0 afterwards.
  void Discard(char* begin, size_t bytes) const;

 private:
  PageRegion() = default;

  void* mapping_ = nullptr;  // Begins up to a huge page before data_.
  size_t mapped_bytes_ = 0;
  char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PAGE_REGION_H_
