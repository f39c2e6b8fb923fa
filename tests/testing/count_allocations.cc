// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/count_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
namespace ringfleet::testing {
bool CountsAllocations() { return false; }
size_t AllocationCount() { return 0; }
}  // namespace ringfleet::testing
#else

namespace {
std::atomic<size_t> allocations{0};
}  // namespace

void* operator new(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace ringfleet::testing {
bool CountsAllocations() { return true; }
size_t AllocationCount() { return allocations.load(); }
}  // namespace ringfleet::testing
#endif
