// SPDX-License-Identifier: Apache-2.0
// Replaces the global operator new of the program that links it by one that
// counts.
#ifndef RINGFLEET_TESTS_TESTING_COUNT_ALLOCATIONS_H_
#define RINGFLEET_TESTS_TESTING_COUNT_ALLOCATIONS_H_

#include <cstddef>

namespace ringfleet::testing {

// False under sanitizers, which have an allocator of their own.
bool CountsAllocations();

// Calls of operator new so far, by all threads.
size_t AllocationCount();

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_COUNT_ALLOCATIONS_H_
