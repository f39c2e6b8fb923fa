// SPDX-License-Identifier: Apache-2.0
// The spelling of hosts, addresses and ranges of ranks. Thread-safe.
#ifndef RINGFLEET_CLUSTER_RPC_HOST_ADDRESS_H_
#define RINGFLEET_CLUSTER_RPC_HOST_ADDRESS_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::cluster {

struct ServerAddress {
  std::string host;  // Name or number; IPv6 without brackets.
  int port = 0;      // 0: any free port, when listening.
};

// Reads "HOST:PORT" or "[IPV6]:PORT". INVALID_ARGUMENT names what is wrong.
absl::StatusOr<ServerAddress> ParseAddress(absl::string_view text);
// Writes what ParseAddress reads, with brackets around IPv6.
std::string FormatAddress(const ServerAddress& address);
// Returns "127.0.0.1:50052" of gRPC's "ipv4:127.0.0.1:50052", "[::1]:50052" of
// "ipv6:%5B::1%5D:50052", and "" of anything else.
std::string NumericAddress(absl::string_view peer);
// True for 127.0.0.0/8, ::1, ::ffff:127.x.y.z and the name "localhost".
bool IsLoopback(absl::string_view host);
// True for numbers that stand for all addresses of a machine: 0.0.0.0, ::,
// ::ffff:0.0.0.0 and their other spellings. Nobody can dial such an address on
// another machine.
bool IsWildcard(absl::string_view host);

// Reads a range of ranks, "2" or "0-3", in a fleet of `size` workers. Returns
// the first and the last rank, both included. "" stands for all workers.
//
// Errors: INVALID_ARGUMENT: malformed, reversed, or past the last rank.
absl::StatusOr<std::pair<int, int>> ParseHostRange(absl::string_view range,
                                                   int size);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RPC_HOST_ADDRESS_H_
