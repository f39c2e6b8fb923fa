// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_TESTING_SANITIZED_H_
#define RINGFLEET_TESTS_TESTING_SANITIZED_H_

namespace ringfleet::testing {

// How much longer everything takes in this build: sanitizers slow the data
// path and, more so, the start of a process.
#if defined(__SANITIZE_THREAD__)
inline constexpr double kSlowdown = 8;
inline constexpr bool kSanitized = true;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr double kSlowdown = 4;
inline constexpr bool kSanitized = true;
#else
inline constexpr double kSlowdown = 1;
inline constexpr bool kSanitized = false;
#endif

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_SANITIZED_H_
