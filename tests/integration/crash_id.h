// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_INTEGRATION_CRASH_ID_H_
#define RINGFLEET_TESTS_INTEGRATION_CRASH_ID_H_

#include <cstdint>

namespace ringfleet::integration {

// ringfleet_crashing_worker dies when a plan admits a prompt with this id.
inline constexpr uint32_t kCrashId = 299;

}  // namespace ringfleet::integration

#endif  // RINGFLEET_TESTS_INTEGRATION_CRASH_ID_H_
