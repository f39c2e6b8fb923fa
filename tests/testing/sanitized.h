// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_TESTING_SANITIZED_H_
#define RINGFLEET_TESTS_TESTING_SANITIZED_H_

namespace ringfleet::testing {

// Factor for times in this build. Sanitizers slow the data path, and slow the
// start of a process even more.
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
