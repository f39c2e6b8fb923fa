// SPDX-License-Identifier: Apache-2.0
// Counts allocations. Replaces the global operator new of the program that
// links this file.
#ifndef RINGFLEET_TESTS_TESTING_COUNT_ALLOCATIONS_H_
#define RINGFLEET_TESTS_TESTING_COUNT_ALLOCATIONS_H_

#include <cstddef>

namespace ringfleet::testing {

// Returns false under sanitizers, which have their own allocator.
bool CountsAllocations();

// Returns the number of calls of operator new so far, by all threads.
size_t AllocationCount();

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_COUNT_ALLOCATIONS_H_
