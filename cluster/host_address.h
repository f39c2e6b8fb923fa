// SPDX-License-Identifier: Apache-2.0
// How hosts, addresses and ranges of ranks are spelled. Thread-safe.
#ifndef RINGFLEET_CLUSTER_HOST_ADDRESS_H_
#define RINGFLEET_CLUSTER_HOST_ADDRESS_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::cluster {

// First and last rank, both included, of "2" or "0-3" in a fleet of `size`
// workers; all of them for "".
//
// Errors: INVALID_ARGUMENT: malformed, reversed, or past the last rank.
absl::StatusOr<std::pair<int, int>> ParseHostRange(absl::string_view range,
                                                   int size);

// "localhost", 127.0.0.0/8 or ::1 (also as ::ffff:127.x.y.z), by spelling; no
// name is resolved.
bool IsLoopback(absl::string_view host);

// "host:port", with brackets around an IPv6 address.
std::string JoinHostPort(absl::string_view host, int port);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_HOST_ADDRESS_H_
