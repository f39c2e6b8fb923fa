// SPDX-License-Identifier: Apache-2.0
// Requests that no client should send: valid ones with damaged heads, bodies
// and framing.
#ifndef RINGFLEET_TESTS_INTEGRATION_HOSTILE_REQUESTS_H_
#define RINGFLEET_TESTS_INTEGRATION_HOSTILE_REQUESTS_H_

#include <cstddef>
#include <random>
#include <string>

namespace ringfleet::integration {

// No request is longer.
inline constexpr size_t kMostHostileBytes = size_t{256} << 10;

// Returns the bytes of one or several requests, damaged at random.
std::string HostileRequest(std::mt19937_64& random);

}  // namespace ringfleet::integration

#endif  // RINGFLEET_TESTS_INTEGRATION_HOSTILE_REQUESTS_H_
